package rangelimit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLinkFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "links.json")
	now := time.Unix(1e9, 0)
	open := func() *LinkFile { return &LinkFile{file: file, now: func() time.Time { return now }} }
	if _, ok := open().Get("az://a"); ok {
		t.Error("known though there is no file")
	}
	want := Link{Streams: 40, First: 0.03, Rate: 6e7}
	open().Put("az://a", want)
	got, ok := open().Get("az://a")
	if want.At = got.At; !ok || got != want {
		t.Errorf("%+v, %t", got, ok)
	}
	now = now.Add(maxLinkAge)
	if _, ok := open().Get("az://a"); ok {
		t.Error("what is a day old was believed")
	}
	now = time.Unix(1e9-10, 0)
	if _, ok := open().Get("az://a"); ok {
		t.Error("what is from the future was believed")
	}
	// Bounded: the oldest go.
	h := open()
	for i := range 2 * maxLinks {
		now = now.Add(time.Minute)
		h.Put(fmt.Sprint("s3://", i), Link{Streams: 16})
	}
	h = open()
	if _, ok := h.Get(fmt.Sprint("s3://", 2*maxLinks-1)); !ok || len(h.byHost) != maxLinks {
		t.Errorf("%d links", len(h.byHost))
	}
	for _, bad := range []string{"", "[]", "{", `{"a":1}`, `{"az://a":{"streams":1e9,"at":"2001-09-09T01:46:40Z"}}`, `{"az://a":{"streams":-4,"at":"2001-09-09T01:46:40Z"}}`,
		`{"az://a":{"streams":16,"first_byte_s":-1,"at":"2001-09-09T01:46:40Z"}}`, `{"az://a":{"streams":16,"bytes_per_second":1e300,"at":"2001-09-09T01:46:40Z"}}`, strings.Repeat(" ", 2<<20)} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		now = time.Unix(1e9+60, 0)
		if p, ok := open().Get("az://a"); ok {
			t.Errorf("%.40q: %+v", bad, p)
		}
	}
	// What cannot be written is not kept, and nothing is left of the try.
	file = filepath.Join(t.TempDir(), "no", "links.json")
	h = open()
	h.Put("az://a", Link{Streams: 8})
	if p, ok := h.Get("az://a"); !ok || p.Streams != 8 {
		t.Error(p, ok)
	}
}
