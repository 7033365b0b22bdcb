package activator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/adapteruse"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// fakeAdapters loads adapters into replicas in its own time, as a platform does.
type fakeAdapters struct {
	w      *testEnv
	mu     sync.Mutex
	takes  time.Duration
	fails  error
	loads  []string
	uses   []string
	onLoad func(replica, adapter string)
}

func (a *fakeAdapters) LoadAdapter(ctx context.Context, name functions.Name, replica string) error {
	a.mu.Lock()
	a.loads = append(a.loads, replica+":"+name.Adapter)
	takes, fails, onLoad := a.takes, a.fails, a.onLoad
	a.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if fails == nil && onLoad != nil {
		onLoad(replica, name.Adapter)
	}
	return fails
}

func (a *fakeAdapters) UseAdapter(name functions.Name, replica string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.uses = append(a.uses, replica+":"+name.Adapter)
}

func (a *fakeAdapters) calls() (loads, uses []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.loads), slices.Clone(a.uses)
}

func newAdapterEnv(t *testing.T) (*fakeAdapters, *testEnv) {
	s := &fakeAdapters{}
	s.w = newTestEnv(t, func(o *Options) { o.Adapters = s })
	return s, s.w
}

// withAdapters makes f a model with two adapters, of which each replica has those given.
func withAdapters(f snapshot.Snapshot, has ...[]string) snapshot.Snapshot {
	m := *f.Model
	m.Spec.Adapters = []functions.Adapter{{Name: "pirate", Source: "./p"}, {Name: "poet", Source: "./q"}}
	f.Model = &m
	f.Replicas = slices.Clone(f.Replicas)
	for i := range has {
		f.Replicas[i].Adapters = has[i]
	}
	return f
}

const adapterRequest = `{"model":"tiny:pirate","messages":[{"role":"user","content":"hello"}]}`

// adapterEngine answers for what it has loaded, and as vLLM does for what it has not.
func adapterEngine(loaded func() []string) func(net.Conn, *http.Request, string) bool {
	return func(c net.Conn, r *http.Request, body string) bool {
		for _, name := range append(loaded(), "tiny") {
			if strings.Contains(body, fmt.Sprintf(`"model":%q`, name)) {
				return goodAnswer(c, r, body)
			}
		}
		b := `{"error":{"message":"The model does not exist.","type":"NotFoundError","param":"model","code":404}}`
		return writeString(c, fmt.Sprintf("HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(b), b))
	}
}

func TestAdapterLoadedOnFirstUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newAdapterEnv(t)
		var mu sync.Mutex
		var have []string
		e := w.engineAt("10.0.0.1:1", adapterEngine(func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(have) }))
		s.takes = 20 * time.Second
		f := withAdapters(readyAt(testFunction("tiny"), 8, "10.0.0.1:1"))
		s.onLoad = func(_, adapter string) {
			mu.Lock()
			have = append(have, adapter)
			mu.Unlock()
			w.act.Publish(withAdapters(readyAt(testFunction("tiny"), 8, "10.0.0.1:1"), []string{adapter}))
		}
		w.act.Publish(f)
		// Not declared: unknown, whatever the engine has.
		if r := w.post("/v1/chat/completions", strings.Replace(adapterRequest, "pirate", "cook", 1)); r.status != 404 ||
			r.code() != "model_not_found" {
			t.Errorf("%d %s", r.status, r.body)
		}
		// Listed with its parent, not loaded.
		if r := w.do(t.Context(), "GET", "/v1/models/tiny:pirate", ""); !strings.Contains(r.body, `"parent":"tiny"`) || !strings.Contains(r.body, `"value":"unloaded"`) {
			t.Errorf("%s", r.body)
		}
		// A stream that waits for it gets a comment.
		r := w.post("/v1/chat/completions", strings.Replace(adapterRequest, `"messages"`, `"stream":true,"messages"`, 1))
		if r.status != 200 || plainEvents(r.body) != streamed || !strings.Contains(r.body, ": thaw state=loading\n") || r.took < 20*time.Second {
			t.Errorf("%d after %v: %s", r.status, r.took, r.body)
		}
		wireRules(t, r.body)
		if got := e.requests(); len(got) != 1 || !strings.Contains(got[0].body, `"model":"pirate"`) {
			t.Errorf("the engine saw %+v", got)
		}
		// From now on it costs nothing, and its use is reported now and then.
		for range 5 {
			if r := w.post("/v1/chat/completions", adapterRequest); r.status != 200 || r.took > time.Second {
				t.Errorf("%d after %v: %s", r.status, r.took, r.body)
			}
		}
		if loads, uses := s.calls(); len(loads) != 1 || len(uses) != 1 {
			t.Errorf("loads %v, uses %v", loads, uses)
		}
		time.Sleep(adapteruse.Interval)
		w.post("/v1/chat/completions", adapterRequest)
		if _, uses := s.calls(); len(uses) != 2 {
			t.Errorf("uses %v", uses)
		}
		if r := w.do(t.Context(), "GET", "/v1/models", ""); !strings.Contains(r.body, `"id":"tiny:pirate","object":"model","created":1767225600,"owned_by":"default","parent":"tiny","status":{"value":"loaded"`) ||
			!strings.Contains(r.body, `"id":"tiny:poet","object":"model","created":1767225600,"owned_by":"default","parent":"tiny","status":{"value":"unloaded"`) {
			t.Errorf("%s", r.body)
		}
	})
}

func TestAdapterPrefersLoadedReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newAdapterEnv(t)
		both := func() []string { return []string{"pirate", "poet"} }
		a, b := w.engineAt("10.0.0.1:1", adapterEngine(both)), w.engineAt("10.0.0.2:1", adapterEngine(both))
		w.act.Publish(withAdapters(readyAt(testFunction("tiny"), 8, "10.0.0.1:1", "10.0.0.2:1"), []string{"poet"}, []string{"pirate"}))
		for range 10 {
			if r := w.post("/v1/chat/completions", adapterRequest); r.status != 200 {
				t.Fatalf("%d %s", r.status, r.body)
			}
		}
		if len(a.requests()) != 0 || len(b.requests()) != 10 {
			t.Errorf("%d and %d", len(a.requests()), len(b.requests()))
		}
		if loads, _ := s.calls(); len(loads) != 0 {
			t.Errorf("loads %v", loads)
		}
	})
}

// TestAdapterDropped: the engine has evicted it since the snapshot.
func TestAdapterDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newAdapterEnv(t)
		var mu sync.Mutex
		var have []string
		w.engineAt("10.0.0.1:1", adapterEngine(func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(have) }))
		s.onLoad = func(_, adapter string) { mu.Lock(); defer mu.Unlock(); have = append(have, adapter) }
		w.act.Publish(withAdapters(readyAt(testFunction("tiny"), 8, "10.0.0.1:1"), []string{"pirate"}))
		for _, body := range []string{adapterRequest, strings.Replace(adapterRequest, `"messages"`, `"stream":true,"messages"`, 1)} {
			mu.Lock()
			have = nil
			mu.Unlock()
			if r := w.post("/v1/chat/completions", body); r.status != 200 {
				t.Errorf("%d %s", r.status, r.body)
			}
		}
		if loads, _ := s.calls(); len(loads) != 2 {
			t.Errorf("loads %v", loads)
		}
	})
}

func TestAdapterErrors(t *testing.T) {
	for _, x := range []struct {
		name   string
		fails  error
		status int
		code   string
		loads  int
	}{
		{"no source", &functions.AdapterError{Code: "adapter_not_found", Message: "nothing there"}, 404, "adapter_not_found", 1},
		{"rank too large", &functions.AdapterError{Code: "adapter_invalid", Message: "its rank is 64, the model file allows 16"}, 400, "adapter_invalid", 1},
		{"not now, twice", &functions.AdapterError{Code: "adapter_unavailable", Message: "the replica is not ready"}, 503, "adapter_unavailable", 2},
		{"its node is gone", errors.New("agent: no route to host"), 503, "adapter_unavailable", 2},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := newAdapterEnv(t)
				s.fails = x.fails
				e := w.engineAt("10.0.0.1:1", goodAnswer)
				w.act.Publish(withAdapters(readyAt(testFunction("tiny"), 8, "10.0.0.1:1")))
				for _, body := range []string{adapterRequest, strings.Replace(adapterRequest, `"messages"`, `"stream":true,"messages"`, 1)} {
					r := w.post("/v1/chat/completions", body)
					if r.status != x.status || r.code() != x.code {
						t.Errorf("%d %s", r.status, r.body)
					}
				}
				if loads, _ := s.calls(); len(loads) != 2*x.loads || len(e.requests()) != 0 {
					t.Errorf("loads %v, %d requests", loads, len(e.requests()))
				}
				if m := metric(t, w, "thaw_engine_errors_total"); m != "" {
					t.Errorf("no engine broke: %s", m)
				}
				// The base model is not touched by it.
				if r := w.post("/v1/chat/completions", plainRequest); r.status != 200 {
					t.Errorf("%d %s", r.status, r.body)
				}
			})
		})
	}
}

// TestAdapterTooSlow: no request waits for it longer than it may.
func TestAdapterTooSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newAdapterEnv(t)
		s.takes = time.Hour
		w.engineAt("10.0.0.1:1", goodAnswer)
		w.act.Publish(withAdapters(readyAt(testFunction("tiny"), 8, "10.0.0.1:1")))
		r := w.post("/v1/chat/completions", adapterRequest)
		if r.status != 503 || r.code() != "model_loading" || r.took > 291*time.Second || r.took < 280*time.Second {
			t.Errorf("%d after %v: %s", r.status, r.took, r.body)
		}
		r = w.post("/v1/chat/completions", adapterRequest, "thaw-max-wait", "7")
		if r.status != 503 || r.took > 8*time.Second {
			t.Errorf("%d after %v: %s", r.status, r.took, r.body)
		}
		// A client that leaves is gone.
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if r := w.do(ctx, "POST", "/v1/chat/completions", adapterRequest); r.err == nil {
			t.Errorf("%d", r.status)
		}
		synctest.Wait()
		if l := w.act.names.table.All()[0].Data.queue.Load(time.Now()); l.Active != 0 {
			t.Errorf("%+v", l)
		}
	})
}
