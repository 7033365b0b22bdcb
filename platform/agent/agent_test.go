//go:build linux

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/tail"
	"github.com/thaw-dev/thaw/testkit"
)

func TestLoadAndUnload(t *testing.T) {
	l := newLab(t, t.TempDir(), nil)
	l.load("r1")
	for range 3 { // a repeated load with the same id changes nothing
		if reply, err := l.Load(t.Context(), request("r1", 1)); err != nil || reply.State != functions.Ready {
			t.Fatalf("%+v %v", reply, err)
		}
	}
	d, _ := l.Heartbeat()
	if len(d.Models) != 1 || d.Memory.Used != 64<<20 || d.Models[0].Endpoint == "" || d.Models[0].Spec == nil {
		t.Fatalf("%+v", d)
	}
	if err := l.Unload(t.Context(), functions.UnloadRequest{ID: "r1", Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	// The state changes a moment before its heartbeat is pushed, for which this waits.
	l.until("it is gone", func() bool { return slices.Contains(l.statesOf("r1"), functions.Unloaded) })
	l.Unload(t.Context(), functions.UnloadRequest{ID: "r1", Epoch: 1})
	if d, _ := l.Heartbeat(); len(d.Models) != 0 || d.Memory.Used != 0 {
		t.Fatalf("not forgotten: %+v", d.Models)
	}
	if err := l.Unload(t.Context(), functions.UnloadRequest{ID: "never", Epoch: 1}); err != nil {
		t.Fatalf("what is not there is gone: %v", err)
	}
	want := []functions.State{functions.Downloading, functions.Loading, functions.Ready, functions.Draining, functions.Unloaded}
	if got := l.statesOf("r1"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("pushed %v, want %v", got, want)
	}
}

// TestFirstEpoch: an agent that has just started takes a server of any epoch, and later none
// far above it.
func TestFirstEpoch(t *testing.T) {
	l := newLab(t, t.TempDir(), nil)
	const first = 10 * functions.MaxEpochStep
	for _, x := range []struct {
		epoch int64
		ok    bool
	}{{first, true}, {first + 2*functions.MaxEpochStep, false}, {first - 1, false}, {first + 1, true}} {
		if err := l.Unload(t.Context(), functions.UnloadRequest{ID: "a", Epoch: x.epoch}); (err == nil) != x.ok {
			t.Errorf("epoch %d: %v", x.epoch, err)
		}
	}
}

func TestEpoch(t *testing.T) {
	l := newLab(t, t.TempDir(), nil)
	if err := l.Unload(t.Context(), functions.UnloadRequest{ID: "a", Epoch: 7}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Load(t.Context(), request("r1", 6)); !errors.Is(err, functions.ErrStaleEpoch) {
		t.Fatalf("a superseded load: %v", err)
	}
	if err := l.Unload(t.Context(), functions.UnloadRequest{ID: "a", Epoch: 6}); !errors.Is(err, functions.ErrStaleEpoch) {
		t.Fatalf("a superseded unload: %v", err)
	}
	if d, _ := l.Heartbeat(); d.Epoch != 7 || len(d.Models) != 0 {
		t.Fatalf("%+v", d)
	}
	if _, err := l.Load(t.Context(), functions.LoadRequest{ID: "../x", Team: "default", Model: "x", Epoch: 7}); !errors.Is(err,
		ErrBadRequest) {
		t.Fatalf("a bad id: %v", err)
	}
}

func TestCancelStart(t *testing.T) {
	l := newLab(t, t.TempDir(), nil)
	r := request("r1", 1)
	r.Spec.Source = "az://a/b/c"
	if _, err := l.Load(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := l.Unload(t.Context(), functions.UnloadRequest{ID: "r1", Epoch: 1, Reason: functions.ReasonCalledOff}); err != nil {
		t.Fatal(err)
	}
	l.until("it is called off", func() bool { return l.state("r1").Over() })
	// A start whose process runs is not cancelled.
	l.load("r2")
	l.Unload(t.Context(), functions.UnloadRequest{ID: "r2", Epoch: 1, Reason: functions.ReasonCalledOff})
	l.load("r3")
	if st := l.state("r2"); st != functions.Ready {
		t.Fatalf("r2 is %s", st)
	}
}

func TestAdopt(t *testing.T) {
	dir := t.TempDir()
	l := newLab(t, dir, func(o *Options) { o.KeepEngines = true })
	l.load("r1")
	before, _ := l.Heartbeat()
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	l = newLab(t, dir, nil)
	l.until("it is adopted", func() bool { return l.state("r1") == functions.Ready })
	after, _ := l.Heartbeat()
	if len(after.Models) != 1 || after.Models[0].Endpoint != before.Models[0].Endpoint || after.Models[0].Spec == nil ||
		after.Memory.Used != 64<<20 {
		t.Fatalf("%+v, was %+v", after.Models, before.Models)
	}
}

// TestKeeperDies: engines end with their supervisor, their replicas fail, and the next
// load starts another supervisor.
func TestKeeperDies(t *testing.T) {
	l := newLab(t, t.TempDir(), nil)
	l.load("r1")
	syscall.Kill(l.keeper().PID(), syscall.SIGKILL)
	l.until("its replica has failed", func() bool { return l.state("r1") == functions.Failed })
	l.until("there is another keeper", func() bool {
		_, err := l.Load(t.Context(), request("r2", 1))
		return err == nil
	})
	l.until("r2 is READY", func() bool { return l.state("r2") == functions.Ready })
}

// TestSpawnWithoutKeeper: a replica that needs a process before the agent has noticed the
// end of its supervisor waits for the next one.
func TestSpawnWithoutKeeper(t *testing.T) {
	l := newLab(t, t.TempDir(), nil)
	first := l.keeper()
	syscall.Kill(first.PID(), syscall.SIGKILL)
	l.until("there is another keeper", func() bool { k := l.keeper(); return k != nil && k != first })
	second := l.keeper()
	l.setSupervisor(first, "") // the agent has not noticed the change yet
	if _, err := l.Load(t.Context(), request("r1", 1)); err != nil {
		t.Fatal(err)
	}
	l.until("it wants a process", func() bool { return l.state("r1") == functions.Loading })
	l.setSupervisor(nil, "the keeper is gone")
	l.setSupervisor(second, "")
	l.until("r1 is READY", func() bool { return l.state("r1") == functions.Ready })
}

// serve serves an agent's API on a loopback port.
func serve(t *testing.T, l *lab) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	engines := upstream.New(upstream.Options{})
	srv := httpserver.NewFiberServer(httpserver.Options{Handler: NewHandler(l.Agent, engines).Serve})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		srv.Shutdown(ctx)
		<-done
		engines.Close()
	})
	return "http://" + ln.Addr().String()
}

func TestHandler(t *testing.T) {
	l := newLab(t, t.TempDir(), nil)
	url := serve(t, l)
	c := NewClient(url, nil)
	defer c.Close()
	if reply, err := c.Load(t.Context(), request("r1", 5)); err != nil || reply.ID != "r1" {
		t.Fatalf("%+v %v", reply, err)
	}
	l.until("r1 is READY", func() bool { return l.state("r1") == functions.Ready })
	if _, err := c.Load(t.Context(), request("r2", 4)); !errors.Is(err, functions.ErrStaleEpoch) {
		t.Errorf("a lower epoch: %v", err)
	}
	if _, err := c.Load(t.Context(), request("r2", math.MaxInt64)); !errors.Is(err, ErrBadRequest) {
		t.Errorf("an epoch after which no server would be obeyed: %v", err)
	}
	if err := c.Unload(t.Context(), functions.UnloadRequest{ID: "r1", Epoch: 4}); !errors.Is(err, functions.ErrStaleEpoch) {
		t.Errorf("a lower epoch: %v", err)
	}
	if _, err := c.Load(t.Context(), functions.LoadRequest{ID: "A", Epoch: 5}); !errors.Is(err, ErrBadRequest) {
		t.Errorf("a bad id: %v", err)
	}
	l.SetURL(url, false)
	var hb functions.Heartbeat
	err := c.post(t.Context(), c.http, "/heartbeat", nil, &hb)
	if err != nil || hb.AgentID != "n" || len(hb.Models) != 1 || hb.Models[0].Endpoint != url+"/replicas/r1" || hb.Epoch != 5 {
		t.Fatalf("%+v %v", hb, err)
	}
	if err := c.Verify(t.Context(), "r1", "refused"); err != nil {
		t.Error(err)
	}
	var ae *functions.AdapterError
	if err := c.LoadAdapter(t.Context(), functions.AdapterRequest{ID: "r1", Epoch: 5, Name: "pirate"}); !errors.As(err, &ae) ||
		ae.Code != "adapter_not_found" {
		t.Errorf("an adapter the model has not: %v", err)
	}
	if err := c.LoadAdapter(t.Context(), functions.AdapterRequest{ID: "r1", Epoch: 4, Name: "pirate"}); !errors.Is(err,
		functions.ErrStaleEpoch) {
		t.Errorf("a lower epoch: %v", err)
	}
	if err := c.Sleep(t.Context(), functions.SleepRequest{ID: "r9", Epoch: 5, Level: 1}); !errors.Is(err, ErrNoReplica) {
		t.Errorf("a replica that is not here was put to sleep: %v", err)
	}
	if err := c.Sleep(t.Context(), functions.SleepRequest{ID: "r1", Epoch: 5, Level: 7}); !errors.Is(err, ErrBadRequest) {
		t.Errorf("a level there is none of: %v", err)
	}
	var received string
	l.until("the engine's words have come through its pipe", func() bool {
		log, err := c.Logs(t.Context(), "r1", 5, false)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		b, _ := io.ReadAll(log)
		received = string(b)
		return received != ""
	})
	if received != "engine of x\n" {
		t.Errorf("log %q", received)
	}
	if _, err := c.Logs(t.Context(), "r9", 5, false); !errors.Is(err, functions.ErrNotFound) {
		t.Errorf("the log of a replica that is not here: %v", err)
	}

	call := func(method, path, token, body string) (int, string) {
		req, _ := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
		if token != "" {
			req.Header.Set("Authorization", token)
		}
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	for _, x := range []struct {
		method, path, body string
		status             int
		has                string
	}{
		{"POST", "/infer", `{"model":"x","prompt":"hello"}`, 200, "hello"},
		{"POST", "/infer", `{"model":"default/x","messages":[]}`, 200, "messages"},
		{"POST", "/infer", `{"model":"other/x","messages":[]}`, 404, "model_not_found"},
		{"POST", "/infer", `{"model":"y","messages":[]}`, 404, "model_not_found"},
		{"POST", "/infer", `{"model":"x","model":"y"}`, 400, "invalid_json"},
		{"POST", "/infer", `{"model":"x","prompt":"a","n":100000}`, 400, `"param":"/n"`},
		{"POST", "/replicas/r1/v1/completions", `{"prompt":"a","n":100000}`, 400, `"param":"/n"`},
		{"POST", "/replicas/r1/v1/completions", `{"prompt":"a","request_id":"b"}`, 400, `"param":"/request_id"`},
		{"POST", "/replicas/r1/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://169.254.169.254/"}}]}]}`, 400, `"param":"/messages"`},
		{"POST", "/replicas/r1/v1/score", `{"text_1":{"content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}}`, 400, `"param":"/text_1"`},
		{"POST", "/replicas/r1/v1/completions", ``, 400, "invalid_json"},
		{"POST", "/replicas/r1/v1/completions", `{"prompt":"through"}`, 200, "through"},
		{"POST", "/replicas/r9/v1/completions", `{}`, 404, "replica_not_found"},
		{"POST", "/replicas/r1/v1/load_lora_adapter", `{"lora_path":"/"}`, 404, "unknown_endpoint"},
		{"POST", "/replicas/r1/sleep?level=2", ``, 404, "unknown_endpoint"},
		{"POST", "/replicas/r1/v1/completions/../../sleep", ``, 404, "unknown_endpoint"},
		{"GET", "/replicas/r1/v1/models", ``, 404, "unknown_endpoint"},
		{"GET", "/replicas/r1/metrics", ``, 404, "unknown_endpoint"},
		{"GET", "/replicas/r1/v1/completions", ``, 405, "POST"},
		{"GET", "/sleep_model", "", 405, "POST"},
		{"POST", "/sleep_model", `{"id":"r1","epoch":5,"level":3}`, 400, "level"},
		{"POST", "/sleep_model", `{"id":"r9","epoch":5,"level":1}`, 404, "replica_not_found"},
		{"POST", "/sleep_model", `{"id":"r1","epoch":4,"level":1}`, 409, "stale_epoch"},
		{"POST", "/load_adapter", `{"id":"r9","epoch":5,"name":"a"}`, 404, "replica_not_found"},
		{"POST", "/load_adapter", `{"id":"r1","epoch":4,"name":"a"}`, 409, "stale_epoch"},
		{"POST", "/load_adapter", `{"id":"r1","epoch":5,"name":"a"}`, 404, "adapter_not_found"},
		{"GET", "/load_model", "", 405, "POST"},
		{"POST", "/load_model", "{", 400, "invalid_json"},
		{"POST", "/load_model", "{}{}", 400, "invalid_json"},
		{"POST", "/nothing", "", 404, "unknown_endpoint"},
		{"GET", "/replicas/r1/logs?tail=x", "", 400, "tail"},
	} {
		status, body := call(x.method, x.path, "Bearer secret", x.body)
		if status != x.status || !strings.Contains(body, x.has) {
			t.Errorf("%s %s %s: %d %s", x.method, x.path, x.body, status, body)
		}
		if strings.Contains(body, "secret") {
			t.Errorf("%s: the token reached the engine: %s", x.path, body)
		}
	}

	// A client that disconnects during a stream frees its slot.
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "POST", url+"/replicas/r1/v1/responses", strings.NewReader("{}"))
	req.Header.Set("Authorization", "Bearer secret")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 9)
	if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != "data: 1\n\n" {
		t.Fatalf("%q %v", b, err)
	}
	if n := l.proxied.InFlightOf(functions.Name{}, "r1"); n != 1 {
		t.Errorf("%d in flight", n)
	}
	cancel()
	res.Body.Close()
	l.until("its place is free", func() bool { return l.proxied.InFlightOf(functions.Name{}, "r1") == 0 })

	// So does a request that the engine does not answer: else the replica would look busy for
	// ever, never sleep, and drain for its whole deadline.
	if status, body := call("POST", "/replicas/r1/v1/embeddings", "Bearer secret", `{"input":"x"}`); status != 502 || !strings.Contains(body, "engine_crashed") {
		t.Errorf("an engine that closes the connection: %d %s", status, body)
	}
	if n := l.proxied.InFlightOf(functions.Name{}, "r1"); n != 0 {
		t.Errorf("%d in flight after a request without an answer", n)
	}
}

func TestFollowLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write := func(s string) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(s)
		f.Close()
	}
	write("one\ntwo\nthree\n")
	for lines, want := range map[int]string{0: "", 1: "three\n", 2: "two\nthree\n", 9: "one\ntwo\nthree\n"} {
		f, _ := os.Open(path)
		at, err := lastLinesOffset(f, lines)
		f.Seek(at, io.SeekStart)
		if b, _ := io.ReadAll(f); string(b) != want || err != nil {
			t.Errorf("last %d lines: %q %v", lines, b, err)
		}
		f.Close()
	}
	f, _ := os.Open(path)
	ended := make(chan struct{})
	l := tail.New(tail.Options{Path: func() string { return path }, File: f, Ended: ended})
	defer l.Close()
	r := func(n int) string {
		b := make([]byte, n)
		if _, err := io.ReadFull(l, b); err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if s := r(14); s != "one\ntwo\nthree\n" {
		t.Errorf("%q", s)
	}
	write("four\n")
	if s := r(5); s != "four\n" {
		t.Errorf("%q", s)
	}
	os.Rename(path, path+".1") // a log rotation
	write("five\n")
	if s := r(5); s != "five\n" {
		t.Errorf("%q", s)
	}
	close(ended)
	if b, err := io.ReadAll(l); len(b) != 0 || err != nil {
		t.Errorf("%q %v", b, err)
	}
}

// TestJoin: heartbeats to an unreachable server are retried, the server gets the newest
// one, and a burst is coalesced.
func TestJoin(t *testing.T) {
	var down atomic.Bool
	var last, count, refused atomic.Int64
	flood := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			w.WriteHeader(503)
			refused.Add(1)
			return
		}
		b, _ := io.ReadAll(r.Body)
		<-flood
		var hb functions.Heartbeat
		if r.URL.Path != "/api/v1/heartbeat" || json.Unmarshal(b, &hb) != nil {
			t.Errorf("%s %s", r.URL.Path, b)
		}
		if hb.Epoch < last.Load() {
			t.Errorf("%d after %d", hb.Epoch, last.Load())
		}
		last.Store(hb.Epoch)
		count.Add(1)
		w.WriteHeader(204)
	}))
	defer srv.Close()
	j := NewJoin(srv.URL+"/", nil, nil, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	wait := func(n int64) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("the server knows %d", n), func() (bool, string) {
			l := last.Load()
			return l == n, fmt.Sprint(l)
		})
	}
	for i := range int64(1000) {
		j.Push(functions.Heartbeat{AgentID: "n", Epoch: i + 1})
	}
	close(flood)
	wait(1000)
	if n := count.Load(); n > 2 { // the one in flight, and the newest
		t.Errorf("%d documents for a flood of 1000", n)
	}
	refuse := func(epoch int64) {
		t.Helper()
		down.Store(true)
		refused.Store(0)
		j.Push(functions.Heartbeat{Epoch: epoch})
		testkit.Eventually(t, "a refused heartbeat", func() bool { return refused.Load() > 0 })
	}
	refuse(1001)
	j.Push(functions.Heartbeat{Epoch: 1002})
	down.Store(false)
	wait(1002)
	refuse(1003) // the newest one is sent again without another
	down.Store(false)
	wait(1003)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestJoinBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := NewJoin("http://server.invalid", nil, nil, slog.New(slog.DiscardHandler))
		var tries atomic.Int64
		j.http.Transport = refusing{&tries}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- j.Run(ctx) }()
		for i := range int64(600) { // ten heartbeats a second for a minute
			j.Push(functions.Heartbeat{Epoch: i})
			time.Sleep(100 * time.Millisecond)
		}
		if n := tries.Load(); n < 10 || n > 25 {
			t.Errorf("%d tries in a minute", n)
		}
		cancel()
		<-done
	})
}

type refusing struct{ tries *atomic.Int64 }

func (r refusing) RoundTrip(*http.Request) (*http.Response, error) {
	r.tries.Add(1)
	return nil, errors.New("connection refused")
}

func TestOffer(t *testing.T) {
	found := []functions.GPU{{Index: 0, MemoryTotal: 80 << 30, MemoryFree: 70 << 30, Health: "ok"}, {Index: 1, MemoryTotal: 24 << 30, Health: "ok"}}
	for _, x := range []struct {
		count  int
		memory functions.Bytes
		want   string
	}{
		{-1, 0, "[80Gi 24Gi]"}, {1, 0, "[80Gi]"}, {0, 0, "[]"}, {-1, 40 << 30, "[40Gi 24Gi]"}, {3, 0, "[80Gi 24Gi 0]"}, {3, 16 << 30, "[16Gi 16Gi 16Gi]"},
	} {
		var got []functions.Bytes
		for _, g := range offeredGPUs(found, x.count, x.memory) {
			got = append(got, g.MemoryTotal)
		}
		if fmt.Sprint(got) != x.want {
			t.Errorf("--gpus %d --gpu-memory %v: %v, want %s", x.count, x.memory, got, x.want)
		}
	}
	if found[0].MemoryTotal != 80<<30 {
		t.Error("what was found was changed")
	}
	// Memory of others is none that is offered.
	found[0].Foreign = 30 << 30
	for memory, want := range map[functions.Bytes]functions.Bytes{0: 30 << 30, 60 << 30: 10 << 30, 50 << 30: 0, 20 << 30: 0} {
		if got := offeredGPUs(found, -1, memory)[0]; got.Foreign != want {
			t.Errorf("--gpu-memory %v: %v of it is held by others, want %v", memory, got.Foreign, want)
		}
	}
}

// TestHeartbeatGPUMemory: a heartbeat carries what each replica holds of a GPU.
func TestHeartbeatGPUMemory(t *testing.T) {
	l := newLab(t, t.TempDir(), func(o *Options) {
		o.GPUMemoryOf = func(replica string) functions.Bytes {
			return map[string]functions.Bytes{"r1": 7 << 30}[replica]
		}
	})
	l.load("r1")
	l.load("r2")
	hb, err := l.Heartbeat()
	if err != nil || len(hb.Models) != 2 || hb.Models[0].GPUMemory != 7<<30 || hb.Models[1].GPUMemory != 0 {
		t.Fatalf("%v %+v", err, hb.Models)
	}
}

// TestDeclaredGPUs: GPUs that the driver does not show are said to be declared alone.
func TestDeclaredGPUs(t *testing.T) {
	for _, gpus := range []int{-1, 0, 1 << 10} {
		var log bytes.Buffer
		n, err := Open(Config{Options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, Data: t.TempDir(), GPUs: gpus})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(log.String(), "more GPUs are declared"); got != (gpus > 0) {
			t.Errorf("%d GPUs: %s", gpus, &log)
		}
		n.Store().Close()
	}
}
