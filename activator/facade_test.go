package activator

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/compositions"
	"github.com/thaw-dev/thaw/functions"
)

// TestUnknownNames: what is asked about a function or a request that is not there.
func TestUnknownNames(t *testing.T) {
	a := New(Options{Keys: newKeyStore(t)})
	name := testFunction("none").Name
	if d, ok := a.DemandOf(name); ok || d.Name != (functions.Name{}) || d.Active+d.Queued > 0 {
		t.Error(d, ok)
	}
	if n := a.InFlightOf(name, "r"); n != 0 {
		t.Error(n)
	}
	if external, ok := a.External(name); external || ok {
		t.Error(external, ok)
	}
	if position, of, ok := a.Position("none"); ok || position != 0 || of != (functions.Name{}) {
		t.Error(position, of, ok)
	}
	if id, ok := a.ColdStartOf("none"); ok || id != "" {
		t.Error(id, ok)
	}
	if got := a.names.publicName(name); got != name {
		t.Error(got)
	}
	if b, e := a.DescribeModel(auth.Identity{Team: "default"}, "none"); e == nil || e.Status != 404 || len(b) != 0 {
		t.Error(string(b), e)
	}
	a.Remove(name)
}

// TestDescribeModel: a model's item is that of the list.
func TestDescribeModel(t *testing.T) {
	a := New(Options{Waker: &testEnv{}, Keys: newKeyStore(t)})
	a.Publish(readyAt(testFunction("tiny"), 1, "e:1"))
	b, e := a.DescribeModel(auth.Identity{Team: "default"}, "tiny")
	if e != nil || !strings.HasPrefix(string(b), `{"id":"tiny","object":"model"`) {
		t.Errorf("%s %v", b, e)
	}
}

// TestServesPath: all of /v1 and the endpoints outside of it, and nothing beside them.
func TestServesPath(t *testing.T) {
	for path, want := range map[string]bool{"/v1": true, "/v1/": true, "/v1/x": true, "/v1x": false, "/v2/rerank": true, "/v2": false, "/rerank": true, "/": false,
		"/tokenize": true, "/api/v1/x": false} {
		if got := ServesPath(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// TestMemberState: what a Composition knows of the functions that its caller names.
func TestMemberState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		cold := loadingAt(testFunction("cold"), functions.Loading, 10, 7*time.Second)
		cold.Model.Spec.Price = functions.Price{Input: 1, Output: 2}
		w.act.Publish(readyAt(testFunction("ready"), 1, "e:1"), cold, testFunction("red/theirs"))
		w.cloudAt("cloud:1", func(r *functions.RemoteSpec) { r.Price = functions.Price{Input: 3, Output: 4} })
		w.act.SetRouters([]*functions.Router{testRouter("ready")}, nil)
		w.act.SetCompositions([]*functions.Composition{{Metadata: functions.Metadata{Name: "panel", Namespace: "default"}}})
		name := func(s string) functions.Name { return functions.Name{Team: "default", Name: s} }
		for asked, want := range map[string]struct {
			f  compositions.Function
			ok bool
		}{
			"ready":      {compositions.Function{Name: name("ready"), Ready: true, Model: true}, true},
			"cold":       {compositions.Function{Name: name("cold"), Model: true, Wait: 7 * time.Second, Price: functions.Price{Input: 1, Output: 2}}, true},
			"cloud":      {compositions.Function{Name: name("cloud"), Ready: true, Price: functions.Price{Input: 3, Output: 4}}, true},
			"auto":       {compositions.Function{Name: name("auto"), Ready: true}, true},
			"panel":      {compositions.Function{Name: name("panel"), Ready: true, Composition: true}, true},
			"red/theirs": {},
			"A B":        {},
		} {
			if f, ok := w.act.names.memberState(auth.Identity{Team: "default"}, asked); f != want.f || ok != want.ok {
				t.Errorf("%s: %+v, %v", asked, f, ok)
			}
		}
		if f, ok := w.act.names.memberState(auth.Identity{Team: "default"}, "none"); ok || f.Name != name("none") {
			t.Errorf("%+v, %v", f, ok)
		}
		if f, ok := w.act.names.memberState(auth.Identity{Team: "default", Admin: true}, "red/theirs"); !ok || f.Ready || !f.Model {
			t.Errorf("as admin: %+v, %v", f, ok)
		}
		if c := w.act.names.compositions.Find(functions.Name{Team: "default", Name: "panel", Adapter: "x"}); c != nil {
			t.Error("an adapter of a Composition")
		}
	})
}

// TestDefaults: what holds where Options say nothing.
func TestDefaults(t *testing.T) {
	o := Options{}.withDefaults()
	if got, want := fmt.Sprint(o.Timing), "{3s 4s 45s 4m50s 20s 15s 5m0s 1h0m0s}"; got != want || o.Hold != HoldSilent ||
		o.BufferBytes != 1<<30 {
		t.Errorf("%s, %s, %d; want %s", got, o.Hold, o.BufferBytes, want)
	}
	if o.Limits == nil || o.Metrics == nil || o.Log == nil || o.Random == nil || o.Now == nil {
		t.Errorf("%+v", o)
	}
}

// TestBuffered: the server is told how many bytes of a stream it can have without a wait.
func TestBuffered(t *testing.T) {
	if s := (&eventStream{out: []byte("abc")}); s.Buffered() != 3 {
		t.Errorf("%d bytes", s.Buffered())
	}
}
