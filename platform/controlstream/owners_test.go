package controlstream

import (
	"bytes"
	"encoding/gob"
	"reflect"
	"testing"
	"time"
)

// TestOwnersOverTheWire: an empty list is sent too, because it ends a former one.
func TestOwnersOverTheWire(t *testing.T) {
	for _, want := range []*Owners{
		nil, {Said: true}, {Said: true, Allow: map[string][]string{"a": {"az://x/y", "hf://z"}}, Pods: map[string]string{"u": "a"}},
	} {
		var b bytes.Buffer
		var f updateFrame
		if err := gob.NewEncoder(&b).Encode((Update{Owners: want}).pack(1, models{}, time.Now())); err != nil {
			t.Fatal(err)
		}
		if err := gob.NewDecoder(&b).Decode(&f); err != nil {
			t.Fatal(err)
		}
		if got := f.unpack(models{}, time.Now()).Owners; !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}
