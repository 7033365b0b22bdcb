package activator

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// revision is a function that goes by a service's name.
func revision(name, serves string) snapshot.Snapshot {
	f := testFunction(name)
	f.ServedModelName, f.Hidden = serves, true
	return f
}

func alias80(name string, revisions ...string) Alias {
	a := Alias{Name: testFunction(name).Name}
	for i, r := range revisions {
		a.Shares = append(a.Shares, Share{Function: testFunction(r).Name, Percent: []int{80, 20}[i]})
	}
	return a
}

// list is the models that a key may name, with their states.
func (e *testEnv) list(key string) string {
	var doc struct {
		Data []struct {
			ID     string
			Status struct{ Value string }
		}
	}
	json.Unmarshal([]byte(e.do(context.Background(), "GET", "/v1/models", "", "Authorization", "Bearer "+key).body), &doc)
	var out []string
	for _, m := range doc.Data {
		out = append(out, m.ID+" "+m.Status.Value)
	}
	return strings.Join(out, ", ")
}

// A service is known by its own name wherever a user reads it; its revisions are
// what is woken, and what the engine is asked is the name it serves.
func TestAliases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drawn := 0
		w := newTestEnv(t, func(o *Options) {
			o.Open = false
			o.Random = func(int) int { return drawn }
		})
		red, _, _ := w.keys.Create("red", "", false)
		blue, _, _ := w.keys.Create("blue", "", false)
		admin, _, _ := w.keys.Create("red", "", true)
		first := w.engineAt("e:1", goodAnswer)
		one, two := revision("red/tiny-00001", "tiny"), revision("red/tiny-00002", "tiny")
		one.Model.Spec.Adapters = []functions.Adapter{{Name: "pirate"}}
		w.act.Publish(readyAt(one, 8, "e:1"), two, testFunction("red/plain"), testFunction("blue/own"), testFunction("red/zulu"))
		w.act.SetAliases([]Alias{alias80("red/tiny", "red/tiny-00001", "red/tiny-00002"), alias80("red/early", "red/early-00001"),
			alias80("red/zulu", "red/tiny-00001")}) // in place of the function of that name

		if got := w.list(red); got != "early unloaded, plain unloaded, tiny loaded, tiny:pirate loaded, zulu loaded, zulu:pirate loaded" {
			t.Error(got)
		}
		if got := w.list(blue); got != "own unloaded" {
			t.Error(got)
		}
		want := "blue/own unloaded, early unloaded, plain unloaded, tiny loaded, tiny:pirate loaded, zulu loaded, zulu:pirate loaded"
		if got := w.list(admin); got != want {
			t.Error(got)
		}
		for one, status := range map[string]int{"tiny": 200, "tiny:pirate": 200, "tiny:ninja": 404, "red/tiny": 200, "none": 404} {
			if r := w.do(t.Context(), "GET", "/v1/models/"+one, "", "Authorization", "Bearer "+red); r.status != status {
				t.Errorf("%s: %d %s", one, r.status, r.body)
			}
		}
		send := func(model, key string) result {
			return w.post("/v1/chat/completions", `{"model":"`+model+`","messages":[]}`, "Authorization", "Bearer "+key)
		}
		for _, c := range []struct {
			model, key string
			draw       int
			status     int
			want       string
		}{
			{"tiny", red, 79, 200, ""},
			{"red/tiny", red, 0, 200, ""},
			{"tiny-00001", red, 0, 200, ""}, // by its own name too
			{"tiny:pirate", red, 0, 200, ""},
			{"tiny", blue, 0, 404, "does not exist or you do not have access"},
			{"red/tiny", blue, 0, 404, "does not exist or you do not have access"},
			{"tin", red, 0, 404, "Nearest: `tiny`."},
			{"tiny-0000", red, 0, 404, "access to it."}, // what is hidden is not suggested
			{"early", red, 0, 503, "`early` is being set up"},
			{"early:pirate", red, 0, 503, "being set up"},
			{"tiny:ninja", red, 0, 404, "`tiny:ninja` does not exist"},
		} {
			drawn = c.draw
			r := send(c.model, c.key)
			if r.status != c.status || !strings.Contains(r.body, c.want) {
				t.Errorf("%s: %d %s", c.model, r.status, r.body)
			}
		}
		var models []string
		for _, s := range first.requests() {
			_, m, _ := strings.Cut(s.body, `"model":"`)
			m, _, _ = strings.Cut(m, `"`)
			models = append(models, m)
		}
		if got := strings.Join(models, " "); got != "tiny tiny tiny pirate" {
			t.Error("the engine was asked for", got)
		}

		// The smaller share is cold, and cannot be started.
		drawn = 80
		w.onWake = func() {
			f := two
			f.Failure = &snapshot.Failure{Reason: "no such image", Until: time.Now().Add(time.Minute)}
			w.act.Publish(f)
		}
		if r := send("tiny", red); r.status != 503 || !strings.Contains(r.body, "The model `tiny` could not be loaded: no such image") {
			t.Error(r.status, r.body)
		}
		if got := metric(t, w, "thaw_requests_total"); !strings.Contains(got, `model="tiny"`) || strings.Contains(got, "tiny-0000") {
			t.Error(got)
		}
		if got := metric(t, w, "thaw_active_requests"); strings.Count(got, "\n") != 1 { // of both together
			t.Error(got)
		}
		if got := w.logs.String(); !strings.Contains(got, "model=red/tiny ") || !strings.Contains(got, "revision=tiny-00002") {
			t.Error(got)
		}
		w.act.Remove(two.Name) // what both are counted by stays
		if got := metric(t, w, "thaw_requests_total"); !strings.Contains(got, `model="tiny"`) {
			t.Error(got)
		}
		if r := send("tiny", red); r.status != 200 { // a share whose function is gone goes to the other
			t.Error(r.status, r.body)
		}
		w.act.SetAliases(nil)
		if r := send("tiny", red); r.status != 404 {
			t.Error(r.status, r.body)
		}
	})
}

// TestForcedFunction: the model that a request by host names in its body is ignored.
func TestForcedFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		e := w.engineAt("e:1", goodAnswer)
		f := readyAt(revision("tiny-00001", "tiny"), 8, "e:1")
		f.Model.Spec.Adapters = []functions.Adapter{{Name: "pirate"}}
		w.act.Publish(f)
		ln := newMemoryListener()
		srv := &http.Server{Handler: httpserver.NewNetHTTPHandler(
			httpserver.Options{Handler: func(req *httpserver.Request, res *httpserver.Response) { w.act.ServeAs(f.Name, req, res) }})}
		served := make(chan error, 1)
		go func() { served <- srv.Serve(ln) }()
		tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ln.dial(ctx) }}
		w2 := &testEnv{t: t, client: &http.Client{Transport: tr}}
		for body, want := range map[string]string{
			`{"model":"gpt-4","messages":[]}`:          `{"model":"tiny","messages":[]}`,
			`{"messages":[]}`:                          `{"model":"tiny","messages":[]}`,
			`{}`:                                       `{"model":"tiny"}`,
			`{"model":null,"messages":[]}`:             `{"model":"tiny","messages":[]}`,
			`{"model":"","messages":[]}`:               `{"model":"tiny","messages":[]}`,
			`{"model":"anything:pirate","n":1}`:        `{"model":"pirate","n":1}`,
			`{"model":"hf.co/a/b:Q4_K_M","n":1}`:       `{"model":"tiny","n":1}`,
			`{"model":"tiny:ninja","messages":[]}`:     `{"model":"tiny","messages":[]}`,
			`{"model":"blue/secret-00001","input":""}`: `{"model":"tiny","input":""}`,
		} {
			before := len(e.requests())
			r := w2.post("/v1/chat/completions", body)
			if got := e.requests(); r.status != 200 || len(got) != before+1 || got[before].body != want {
				t.Errorf("%s: %d %s, %+v", body, r.status, r.body, got[before:])
			}
		}
		for body, code := range map[string]string{`{"model":1}`: "invalid_value", `x`: "invalid_json"} {
			if r := w2.post("/v1/chat/completions", body); r.status != 400 || r.code() != code {
				t.Error(body, r.status, r.body)
			}
		}
		tr.CloseIdleConnections()
		srv.Shutdown(context.Background())
		<-served
	})
}

// TestReserve: a reservation has the same queue, wake, retry and accounting.
func TestReserve(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for name, run := range map[string]func(t *testing.T, w *testEnv){
		"woken once, let through together": func(t *testing.T, w *testEnv) {
			w.act.Publish(testFunction("tiny"))
			w.onWake = func() {
				time.Sleep(time.Second)
				w.act.Publish(readyAt(testFunction("tiny"), 1, "e:1", "e:2"))
			}
			var done sync.WaitGroup
			for range 2 {
				done.Go(func() {
					waited := 0
					s, e := w.act.Reserve(t.Context(), ReservationRequest{Name: testFunction("tiny").Name, Team: "default", OnWait: func() { waited++ }})
					if e != nil {
						t.Error(e)
						return
					}
					if waited != 1 || s.ColdStart() != "cs-1" || s.Endpoint == "" || s.ID == "" {
						t.Errorf("waited %d, %+v", waited, s)
					}
					if d, _ := w.act.DemandOf(testFunction("tiny").Name); d.Active == 0 {
						t.Errorf("%+v", d)
					}
					s.FirstByte()
					s.Finish(200)
					s.Finish(200)
				})
			}
			done.Wait()
			if w.count(&w.wakes) != 1 || w.count(&w.firstTokens) != 1 {
				t.Error(w.wakes, w.firstTokens)
			}
			if got := metric(t, w, "thaw_requests_total"); !strings.Contains(got, `code="200"`) || !strings.Contains(got, `cold="true"`) {
				t.Error(got)
			}
		},
		"two tries": func(t *testing.T, w *testEnv) {
			w.act.Publish(readyAt(testFunction("tiny"), 1, "e:1", "e:2"))
			s, e := w.act.Reserve(t.Context(), ReservationRequest{Name: testFunction("tiny").Name, Team: "default"})
			if e != nil {
				t.Fatal(e)
			}
			before := s.Endpoint
			if e := s.Failed(refused); e != nil || s.Endpoint == before {
				t.Error(e, s.Endpoint)
			}
			e = s.Failed(errors.New("EOF"))
			if e == nil || e.Code != openai.EngineCrashed || e.ShouldRetry() {
				t.Error(e)
			}
			s.Finish(e.Status)
			if got := w.engineRequests(); len(got) != 2 || !strings.Contains(got[0], "it refuses connections") {
				t.Error(got)
			}
		},
		"one that cannot be sent again": func(t *testing.T, w *testEnv) {
			w.act.Publish(readyAt(testFunction("tiny"), 1, "e:1", "e:2"))
			s, _ := w.act.Reserve(t.Context(), ReservationRequest{Name: testFunction("tiny").Name, Team: "default"})
			if e := s.FailedForGood(errors.New("EOF")); e == nil || e.Code != openai.EngineCrashed {
				t.Error(e)
			}
			s.Finish(502)
		},
		"the client leaves its replica": func(t *testing.T, w *testEnv) {
			w.act.Publish(readyAt(testFunction("tiny"), 1, "e:1"))
			ctx, cancel := context.WithCancelCause(t.Context())
			s, e := w.act.Reserve(ctx, ReservationRequest{Name: testFunction("tiny").Name, Team: "default"})
			if e != nil {
				t.Fatal(e)
			}
			cancel(httpserver.ErrGone)
			if e := s.Failed(errors.New("EOF")); e == nil || e.Status != 499 {
				t.Error(e)
			}
			s.Finish(499)
			began := time.Now()
			if s, e = w.act.Reserve(t.Context(), ReservationRequest{Name: testFunction("tiny").Name, Team: "default"}); e != nil {
				t.Fatal(e)
			}
			if took := time.Since(began); took != 0 || len(w.engineRequests()) != 0 {
				t.Errorf("the replica was avoided for %v, reports: %v", took, w.engineRequests())
			}
			s.Finish(200)
		},
		"the client leaves": func(t *testing.T, w *testEnv) {
			w.act.Publish(testFunction("tiny"))
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() { time.Sleep(time.Second); cancel(httpserver.ErrGone) }()
			if s, e := w.act.Reserve(ctx, ReservationRequest{Name: testFunction("tiny").Name, Team: "default"}); s != nil || e == nil ||
				e.Status != 499 {
				t.Error(s, e)
			}
			if d, _ := w.act.DemandOf(testFunction("tiny").Name); d.Queued != 0 || w.count(&w.nudges) != 1 {
				t.Errorf("%+v, %d nudges", d, w.nudges)
			}
			if got := metric(t, w, "thaw_requests_total"); !strings.Contains(got, `code="499"`) {
				t.Error(got)
			}
		},
		"the wait is over": func(t *testing.T, w *testEnv) {
			f := testFunction("tiny")
			f.Model.Spec.Queue.Wait = functions.Duration(10 * time.Minute) // longer than a plain answer is waited for
			w.act.Publish(f)
			began := time.Now()
			_, e := w.act.Reserve(t.Context(), ReservationRequest{Name: f.Name, Team: "default"})
			if e == nil || e.Code != openai.ModelLoading || time.Since(began) != 10*time.Minute {
				t.Error(e, time.Since(began))
			}
		},
		"as long as the client said": func(t *testing.T, w *testEnv) {
			w.act.Publish(testFunction("tiny"))
			began := time.Now()
			_, e := w.act.Reserve(t.Context(),
				ReservationRequest{Name: testFunction("tiny").Name, Team: "default", Header: http.Header{"Thaw-Max-Wait": {"7"}}.Get})
			if e == nil || time.Since(began) != 7*time.Second {
				t.Error(e, time.Since(began))
			}
		},
		"drained": func(t *testing.T, w *testEnv) {
			w.act.Publish(testFunction("tiny"))
			go func() { time.Sleep(time.Second); w.act.Drain(t.Context()) }()
			if _, e := w.act.Reserve(t.Context(), ReservationRequest{Name: testFunction("tiny").Name, Team: "default"}); e == nil ||
				e.Code != openai.ShuttingDown {
				t.Error(e)
			}
		},
		"no such function": func(t *testing.T, w *testEnv) {
			if _, e := w.act.Reserve(t.Context(), ReservationRequest{Name: testFunction("nothing").Name, Team: "default"}); e == nil ||
				e.Status != 404 {
				t.Error(e)
			}
		},
		"over its team's limit": func(t *testing.T, w *testEnv) {
			w.act.Publish(readyAt(testFunction("tiny"), 8, "e:1"))
			w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "default"}, Spec: functions.TeamSpec{Limits: functions.Limits{Concurrent: 1}}}})
			s, e := w.act.Reserve(t.Context(), ReservationRequest{Name: testFunction("tiny").Name, Team: "default"})
			if e != nil {
				t.Fatal(e)
			}
			if _, e := w.act.Reserve(t.Context(), ReservationRequest{Name: testFunction("tiny").Name, Team: "default"}); e == nil ||
				e.Status != 429 {
				t.Error(e)
			}
			s.Finish(200)
			if s, e = w.act.Reserve(t.Context(), ReservationRequest{Name: testFunction("tiny").Name, Team: "default"}); e != nil {
				t.Fatal(e)
			}
			s.BrokeMidAnswer()
			s.Finish(502)
			if got := w.engineRequests(); len(got) != 1 || !strings.Contains(got[0], "in the middle of an answer") {
				t.Error(got)
			}
		},
		"its client leaves in the middle of an answer": func(t *testing.T, w *testEnv) {
			w.act.Publish(readyAt(testFunction("tiny"), 8, "e:1"))
			ctx, leave := context.WithCancel(t.Context())
			s, e := w.act.Reserve(ctx, ReservationRequest{Name: testFunction("tiny").Name, Team: "default"})
			if e != nil {
				t.Fatal(e)
			}
			s.FirstByte()
			leave()
			s.BrokeMidAnswer()
			s.Finish(499)
			if got := w.engineRequests(); len(got) != 0 {
				t.Errorf("the replica is blamed: %v", got)
			}
		},
		"removed while it waits": func(t *testing.T, w *testEnv) {
			w.act.Publish(revision("tiny-1", "tiny"))
			go func() { time.Sleep(time.Second); w.act.Remove(testFunction("tiny-1").Name) }()
			if _, e := w.act.Reserve(t.Context(), ReservationRequest{Name: testFunction("tiny-1").Name, Team: "default"}); e == nil ||
				e.Message != "The model `tiny` has been removed." {
				t.Error(e)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { run(t, newTestEnv(t, nil)) })
		})
	}
}

func BenchmarkReserve(b *testing.B) {
	w := &testEnv{}
	keys := newKeyStore(b)
	a := New(Options{Waker: w, Keys: keys})
	f := readyAt(testFunction("tiny"), 8, "e:1", "e:2")
	a.Publish(f)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		s, e := a.Reserve(ctx, ReservationRequest{Name: f.Name, Team: "default"})
		if e != nil {
			b.Fatal(e)
		}
		s.FirstByte()
		s.Finish(200)
	}
}

// BenchmarkAlias is the choice of a function for a name that is split.
func BenchmarkAlias(b *testing.B) {
	a := New(Options{Waker: &testEnv{}, Keys: newKeyStore(b)})
	a.Publish(readyAt(testFunction("tiny-1"), 8, "e:1"), readyAt(testFunction("tiny-2"), 8, "e:2"))
	a.SetAliases([]Alias{alias80("tiny", "tiny-1", "tiny-2")})
	name := testFunction("tiny").Name
	b.ReportAllocs()
	for b.Loop() {
		if e, _ := a.names.lookup(name); e == nil {
			b.Fatal()
		}
	}
}
