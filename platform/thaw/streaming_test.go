package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/azuretest"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

// slowBlobServer is a blob server with a model of some MiB, whose weights stall after their
// first block until open is called.
type slowBlobServer struct {
	*azuretest.Server
	files map[string][]byte // of the model, by name
	once  sync.Once
	gate  chan struct{}
	deny  atomic.Bool // after the gate, requests get only 403
}

func newSlowBlobServer(t *testing.T) *slowBlobServer {
	t.Helper()
	dir := t.TempDir()
	shape := checkpoint.Shape{Hidden: 256, Inter: 704, Layers: 4, Heads: 8, KVHeads: 4, Learned: 300, Vocab: 24576, MaxPos: 2048}
	if _, err := checkpoint.Folder(dir, shape, "What is thaw? It is what ice does in spring.", 5); err != nil {
		t.Fatal(err)
	}
	a := &slowBlobServer{Server: azuretest.New(t), files: map[string][]byte{}, gate: make(chan struct{})}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		a.Put("m/"+f.Name(), b)
		a.files[f.Name()] = b
	}
	a.hold()
	t.Cleanup(a.open)
	return a
}

// spawn runs a server in its own process, with the model.
func (s *slowBlobServer) spawn(t *testing.T, model string, args ...string) *platform {
	t.Helper()
	p := spawnAfter(t, "export AZURE_STORAGE_CONNECTION_STRING='"+s.Getenv("AZURE_STORAGE_CONNECTION_STRING")+"'", map[string]string{"big.yaml": model}, args...)
	t.Cleanup(s.open) // before the server ends, whose engine may wait for these bytes
	return p
}

func (s *slowBlobServer) hold() {
	s.Fault(func(w http.ResponseWriter, r *http.Request, n int) bool {
		rng := r.Header.Get("Range") + r.Header.Get("x-ms-range")
		if strings.HasSuffix(r.URL.Path, ".safetensors") && rng != "" && !strings.HasPrefix(rng, "bytes=0-") {
			select {
			case <-s.gate:
			case <-r.Context().Done():
			}
			if s.deny.Load() {
				azuretest.Fail(w, http.StatusForbidden, "AuthorizationFailure")
				return true
			}
		}
		return false
	})
}

func (s *slowBlobServer) open() { s.once.Do(func() { close(s.gate) }) }

func (s *slowBlobServer) model() string {
	return modelFile("big", "  source: "+azuretest.Location("m")+"\n  engine: ember\n  resources: {memory: 64Mi}\n")
}

// mounts counts thaw's mounts below a folder.
func mounts(dir string) (n int) {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, " fuse.thaw ") && strings.Contains(line, dir) {
			n++
		}
	}
	return n
}

// awaitEarlyStart waits until an engine was started on a checkpoint that is still being staged, or
// skips the test if files cannot be mounted.
func (p *platform) awaitEarlyStart() {
	p.t.Helper()
	p.eventually("an engine before its bytes", func() bool {
		return p.hasEngine("big") || strings.Contains(p.log.String(), "engines start when all their bytes are here")
	})
	if strings.Contains(p.log.String(), "engines start when all their bytes are here") {
		testkit.Missing(p.t, "nothing can be mounted here")
	}
}

func (p *platform) hasEngine(name string) bool {
	for _, pid := range p.processes() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(line), "\x00ember\x00") && strings.Contains(string(line), "\x00"+name+"\x00") {
			return true
		}
	}
	return false
}

// TestStreamingStart: an engine starts before its last byte arrives, and then locally.
func TestStreamingStart(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	src := newSlowBlobServer(t)
	p := src.spawn(t, src.model())
	got := make(chan reply, 1)
	go func() { got <- p.chat("big", `"max_tokens":4`) }()
	p.awaitEarlyStart()
	if n := mounts(p.data); n != 1 {
		t.Errorf("%d mounts", n)
	}
	src.open()
	r := <-got
	if r.status != 200 || r.text() == "" {
		t.Fatalf("%d %v %s", r.status, r.err, r.body)
	}
	spans := p.spans(r.header.Get("Thaw-Cold-Start"))
	if stage, spawn := spans["stage"], spans["spawn"]; stage.end() <= spawn.Start || spawn.Duration == 0 {
		t.Errorf("the engine waited for its bytes: %+v", spans)
	}
	p.eventually("the mount is gone", func() bool { return mounts(p.data) == 0 })
	links, _ := filepath.Glob(filepath.Join(p.data, "agent", "arriving", "*", "model"))
	if len(links) != 1 {
		t.Fatalf("links %v", links)
	}
	if to, err := filepath.EvalSymlinks(links[0]); err != nil || !strings.HasPrefix(to, filepath.Join(p.data, "store", "checkpoints")) {
		t.Errorf("what is opened late is %s, %v", to, err)
	}

	p.do("POST", "/api/v1/functions/default/big/stop", "", "Authorization", p.admin())
	p.eventually("stopped", func() bool { return p.state("default/big") == "" || p.state("default/big") == "UNLOADED" })
	p.eventually("its folder is gone", func() bool {
		left, _ := filepath.Glob(filepath.Join(p.data, "agent", "arriving", "*", "model"))
		return len(left) == 0 || left[0] != links[0]
	})
	src.Fault(nil)
	again := p.chat("big", `"max_tokens":4`)
	if again.status != 200 || again.text() != r.text() || len(src.Gets()) != 0 {
		t.Errorf("second start: %d %q, first %q; %v", again.status, again.text(), r.text(), src.Gets())
	}
}

type span struct{ Start, Duration float64 }

func (s span) end() float64 { return s.Start + s.Duration }

func (p *platform) spans(id string) map[string]span {
	p.t.Helper()
	var tl struct {
		Phases []struct {
			Phase string
			span
		}
	}
	c := p.do("GET", "/api/v1/coldstarts/"+id, "")
	if err := json.Unmarshal([]byte(c.body), &tl); err != nil {
		p.t.Fatalf("%s: %d %s", id, c.status, c.body)
	}
	out := map[string]span{}
	for _, ph := range tl.Phases {
		out[ph.Phase] = ph.span
	}
	return out
}

// TestStreamingFails: a failed staging ends the early engine, with its cause.
func TestStreamingFails(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	src := newSlowBlobServer(t)
	p := src.spawn(t, src.model())
	got := make(chan reply, 1)
	go func() { got <- p.chat("big", `"max_tokens":4`) }()
	p.awaitEarlyStart()
	src.deny.Store(true)
	src.open()
	r := <-got
	if e := r.failure(); r.status != 503 || e.Code != "model_load_failed" || !strings.Contains(e.Message, "AuthorizationFailure") {
		t.Errorf("%d %v %s", r.status, r.err, r.body)
	}
	p.eventually("nothing mounted", func() bool { return mounts(p.data) == 0 })
}

// TestStreamingKilled: a server that is killed during staging leaves a dead mount, which
// the next server removes before it starts the model again.
func TestStreamingKilled(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	src := newSlowBlobServer(t)
	p := src.spawn(t, src.model(), "--orphan-timeout", "2s")
	go p.chat("big", `"max_tokens":4`)
	p.awaitEarlyStart()
	p.kill()
	if mounts(p.data) == 0 {
		t.Error("the kernel cleared up by itself: this test shows nothing")
	}
	src.open()
	p.respawn()
	if r := p.chat("big", `"max_tokens":4`); r.status != 200 || r.text() == "" {
		t.Fatalf("%d %v %s", r.status, r.err, r.body)
	}
	p.eventually("nothing mounted", func() bool { return mounts(p.data) == 0 })
}

// TestStreamingVLLM: an unmodified vLLM starts while its weights are still being staged.
func TestStreamingVLLM(t *testing.T) {
	linuxOnly(t)
	realVLLM(t)
	src := newSlowBlobServer(t)
	p := src.spawn(t, vllmModel("big", azuretest.Location("m"), "resources: {memory: 900Mi}\ndeadlines: {start: 5m}\n"), "--warm", "off")
	p.do("POST", "/api/v1/functions/default/big/wake", "", "Authorization", p.admin())
	program := func() bool {
		for _, pid := range p.processes() {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if strings.Contains(string(line), "/arriving/") {
				return true
			}
		}
		return false
	}
	p.eventually("vLLM before its bytes", func() bool {
		return program() || strings.Contains(p.log.String(), "engines start when all their bytes are here")
	})
	if !program() {
		testkit.Missing(t, "nothing can be mounted here")
	}
	p.eventuallyWithin(8*time.Minute, "it reads its weights", func() bool {
		logs, _ := filepath.Glob(filepath.Join(p.data, "agent", "supervisor", "logs", "big-*.log"))
		for _, l := range logs {
			if b, _ := os.ReadFile(l); strings.Contains(string(b), "Starting to load model") {
				return true
			}
		}
		return p.state("default/big") == "FAILED"
	})
	if n := mounts(p.data); n != 1 {
		t.Errorf("%d mounts", n)
	}
	src.open()
	p.eventuallyWithin(5*time.Minute, "READY", func() bool { return p.state("default/big") == "READY" || p.state("default/big") == "FAILED" })
	r := p.chat("big", `"max_tokens":4`)
	if r.status != 200 {
		t.Fatalf("%d %v %s", r.status, r.err, r.body)
	}
	p.eventually("its files are the store's", func() bool {
		links, _ := filepath.Glob(filepath.Join(p.data, "agent", "arriving", "*", "model"))
		if len(links) != 1 {
			return false
		}
		to, err := os.Readlink(links[0])
		return err == nil && strings.Contains(to, "/store/checkpoints/")
	})
	// Its boot and the download overlapped.
	for _, c := range p.items("/api/v1/coldstarts") {
		spans := p.spans(fmt.Sprint(c["id"]))
		if spans["stage"].end() < spans["spawn"].end() || spans["spawn"].Start > spans["stage"].end() {
			t.Errorf("%+v", spans)
		}
	}
}
