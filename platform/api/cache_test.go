package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// A checkpoint in use, and one that is not.
const (
	testDigest = "1111111111111111111111111111111111111111111111111111111111111111"
	idle       = "3333333333333333333333333333333333333333333333333333333333333333"
)

// stores is one node with one checkpoint in use, and one that never goes.
type stores struct {
	mu         sync.Mutex
	did        []string
	prefetches []functions.PrefetchRequest
	hold       chan struct{} // prefetch waits for it, or for its end
	cancelled  chan struct{} // closed when a prefetch was called off
	silent     []string
	broken     error
}

func (s *stores) Cached(_ context.Context, node string) ([]functions.CacheEntry, []string, error) {
	if node != "" && node != "here" {
		return nil, nil, &functions.StoreError{Code: functions.CodeNoNode, Message: "there is no node " + node}
	}
	if s.broken != nil {
		return nil, nil, s.broken
	}
	return []functions.CacheEntry{{Node: "here", Digest: "sha256:" + testDigest, Source: "az://a/c/x", Bytes: 5, Files: 2, LastUsed: began, InUse: true}}, s.silent, nil
}

func (s *stores) ChangeCheckpoint(_ context.Context, node, digest string, act functions.StoreAction) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did = append(s.did, strings.TrimSpace(string(act)+" "+digest+" "+node))
	switch {
	case digest == "sha256:"+idle:
	case digest != "sha256:"+testDigest:
		return nil, &functions.StoreError{Code: functions.CodeNotCached, Message: "no node has it"}
	case act == functions.StoreRemove:
		return nil, &functions.StoreError{Code: functions.CodeInUse, Message: "it is in use"}
	}
	return []string{"here"}, nil
}

func (s *stores) VerifyCheckpoint(_ context.Context, node, digest string, report func(functions.StoreProgress)) error {
	if digest != "sha256:"+testDigest && digest != "sha256:"+idle {
		return &functions.StoreError{Code: functions.CodeNotCached, Message: "no node has it"}
	}
	report(functions.StoreProgress{Node: "here", State: "verifying"})
	report(functions.StoreProgress{Node: "here", State: "failed",
		Error: &functions.StoreError{Code: "digest_mismatch", Message: "it is rotten"}})
	return nil
}

func (s *stores) Prefetch(ctx context.Context, node string, r functions.PrefetchRequest, report func(functions.StoreProgress)) error {
	s.mu.Lock()
	s.prefetches = append(s.prefetches, r)
	s.mu.Unlock()
	if strings.HasPrefix(r.Source, "nosuch:") {
		return &functions.StoreError{Code: "bad_source", Message: "the scheme is not known here"}
	}
	report(functions.StoreProgress{Node: node, State: "fetching", Percent: 40, Done: 4, Total: 10})
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-ctx.Done():
			close(s.cancelled)
			return ctx.Err()
		}
	}
	report(functions.StoreProgress{Node: node, State: "ready", Percent: 100, Path: "/store/x"})
	return nil
}

func TestCache(t *testing.T) {
	s := &stores{silent: []string{"there"}}
	r := start(t, func(o *Options) { o.Caches.Stores = s })
	for _, c := range []struct {
		method, path, body string
		status             int
		has                string
	}{
		{"GET", "/api/v1/cache", "", 200, `"silent":["there"]`},
		{"GET", "/api/v1/cache?node=here", "", 200, `"source":"az://a/c/x"`},
		{"GET", "/api/v1/cache?node=nowhere", "", 404, "node_not_found"},
		{"GET", "/api/v1/cache?nodes=here", "", 400, "it takes: node"},
		{"POST", "/api/v1/cache/" + testDigest + "/pin", "", 200, `"nodes":["here"]`},
		{"POST", "/api/v1/cache/" + testDigest + "/unpin?node=here", "", 200, `"nodes":["here"]`},
		{"DELETE", "/api/v1/cache/" + testDigest, "", 409, "in_use"},
		{"DELETE", "/api/v1/cache/" + strings.Repeat("2", 64), "", 404, "not_cached"},
		{"DELETE", "/api/v1/cache/tiny", "", 400, "64 hex digits"},
		{"DELETE", "/api/v1/cache/" + strings.Repeat("3", 32), "", 404, "not_cached"},
		{"DELETE", "/api/v1/cache/" + strings.Repeat("G", 64), "", 400, "64 hex digits"},
		{"POST", "/api/v1/cache/" + strings.Repeat("1", 63) + "/verify", "", 400, "64 hex digits"},
		{"POST", "/api/v1/cache/" + testDigest + "/verify", "", 200, `"code":"digest_mismatch"`},
		{"POST", "/api/v1/cache/" + strings.Repeat("2", 64) + "/verify", "", 404, "not_cached"},
		{"POST", "/api/v1/cache/" + testDigest + "/eat", "", 404, "unknown_endpoint"},
		{"PUT", "/api/v1/cache/" + testDigest, "", 405, "method_not_allowed"},
		{"POST", "/api/v1/prefetch", "", 400, "one of them"},
		{"POST", "/api/v1/prefetch", `{"model":"a/one","source":"az://a/c/x"}`, 400, "one of them"},
		{"POST", "/api/v1/prefetch", `{"sauce":"az://a/c/x"}`, 400, "invalid_json"},
		{"POST", "/api/v1/prefetch", `{"model":"!"}`, 400, "model"},
		{"POST", "/api/v1/prefetch", `{"model":"a/onn"}`, 404, "Did you mean a/one"},
		{"POST", "/api/v1/prefetch", `{"source":"nosuch://x"}`, 400, "bad_source"},
		{"POST", "/api/v1/prefetch", `{"source":"az://a/c/x","node":"here"}`, 200, `"state":"ready"`},
		{"POST", "/api/v1/prefetch", `{"model":"a/one","pin":true}`, 200, `"path":"/store/x"`},
	} {
		t.Run(c.method+" "+c.path+c.body, func(t *testing.T) {
			status, body := get(t, r, c.method, c.path, c.body)
			if status != c.status || !strings.Contains(body, c.has) {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	if want := "remove part:" + strings.Repeat("3", 32); !slices.Contains(s.did, want) {
		t.Errorf("%q, not %q", s.did, want)
	}
	last := s.prefetches[len(s.prefetches)-1]
	if last.Source != "/w/x" || last.Dir != r.folder || !last.Pin {
		t.Errorf("a model's prefetch asked for %+v", last)
	}
	s.broken = errors.New("the disk is on fire")
	if status, body := get(t, r, "GET", "/api/v1/cache", ""); status != 500 || !strings.Contains(body, "fire") {
		t.Errorf("%d %s", status, body)
	}
}

// TestForgetAnswers: a key drops the answers of its team's functions, an admin's of all.
func TestForgetAnswers(t *testing.T) {
	var asked []string
	r := start(t, func(o *Options) {
		o.Caches.ForgetAnswers = func(n functions.Name) int { asked = append(asked, n.String()); return 3 }
	})
	r.keys(t)
	for _, c := range []struct {
		query, key string
		status     int
		has        string
	}{
		{"?function=one", r.keyA, 200, `{"function":"a/one","dropped":3}`},
		{"?function=a/one", r.keyA, 200, `"dropped":3`},
		{"?function=a/one:lora", r.keyAdm, 200, `"function":"a/one"`},
		{"?function=b/two", r.keyA, 404, "not_found"},
		{"?function=b/two", r.keyAdm, 200, `"function":"b/two"`},
		{"?function=onn", r.keyA, 404, "Did you mean a/one"},
		{"", r.keyA, 400, "function"},
		{"?function=", r.keyAdm, 400, "function"},
		{"?function=a/b/c", r.keyAdm, 400, "function"},
		{"?model=one", r.keyA, 400, "it takes: function"},
		{"?function=one", "", 401, "invalid_api_key"},
	} {
		if status, _, body := r.ask(t, "DELETE", "/api/v1/cache"+c.query, c.key, ""); status != c.status || !strings.Contains(body, c.has) {
			t.Errorf("%+v: %d %s", c, status, body)
		}
	}
	if got := strings.Join(asked, " "); got != "a/one a/one a/one b/two" {
		t.Errorf("dropped: %s", got)
	}
	bare := start(t, nil)
	if status, _, body := bare.ask(t, "DELETE", "/api/v1/cache?function=a/one", bare.admin, ""); status != 404 ||
		!strings.Contains(body, "keeps no answers") {
		t.Errorf("%d %s", status, body)
	}
}

// TestPrefetchForgetsAnswers: a source that has been staged may have other bytes, so the
// answers of its models are dropped.
func TestPrefetchForgetsAnswers(t *testing.T) {
	var forgotten []string
	r := start(t, func(o *Options) {
		o.Caches.Stores = &stores{}
		o.Caches.ForgetAnswers = func(n functions.Name) int { forgotten = append(forgotten, n.String()); return 0 }
	})
	for _, body := range []string{`{"source":"az://a/c/other"}`, `{"source":"file:///w/x"}`} {
		if status, answer := get(t, r, "POST", "/api/v1/prefetch", body); status != 200 || !strings.Contains(answer, `"ready"`) {
			t.Fatalf("%d %s", status, answer)
		}
	}
	if got := strings.Join(forgotten, " "); got != "a/one b/two" {
		t.Errorf("dropped: %s", got)
	}
}

func get(t *testing.T, r *testAPI, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, r.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.admin)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// TestPrefetchCancelled: who leaves calls it off.
func TestPrefetchCancelled(t *testing.T) {
	s := &stores{hold: make(chan struct{}), cancelled: make(chan struct{})}
	r := start(t, func(o *Options) { o.Caches.Stores = s })
	ctx, leave := context.WithCancel(t.Context())
	cl, err := NewClient(r.url, r.admin)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	err = cl.Prefetch(ctx, PrefetchRequest{Source: "az://a/c/x"}, func(p functions.StoreProgress) {
		if p.State != "fetching" || p.Percent != 40 {
			b, _ := json.Marshal(p)
			t.Errorf("got %s", b)
		}
		leave()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	select {
	case <-s.cancelled:
	case <-time.After(40 * time.Second):
		t.Error("it goes on after the client left")
	}
}
