package nodeloader

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/runtime/jsonsocket"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(dialEnv); path != "" {
		os.Exit(dialAndEnd(path))
	}
	testkit.ShortenExits()
	goleak.VerifyTestMain(m)
}

// dialEnv turns the test binary into a process that dials a socket and ends.
const dialEnv = "THAW_DAEMON_TEST_DIAL"

func dialAndEnd(path string) int {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return 1
	}
	conn.Write([]byte("x"))
	if len(os.Args) > 1 && os.Args[1] == "stay" {
		conn.Read(make([]byte, 1))
	}
	return 0
}

// testTimeout bounds each wait: long, because nothing is measured.
const testTimeout = 30 * time.Second

// gate blocks requests to a source until it is open, and counts them.
type gate struct {
	open         chan struct{}
	plans, reads atomic.Int64
}

func newGate() *gate { return &gate{open: make(chan struct{})} }

// all blocks listings and reads.
func (g *gate) all(ctx context.Context, name string, _, _ int64) error {
	if name == "" {
		g.plans.Add(1)
	} else {
		g.reads.Add(1)
	}
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// files blocks reads only.
func (g *gate) files(ctx context.Context, name string, from, n int64) error {
	if name == "" {
		g.plans.Add(1)
		return nil
	}
	return g.all(ctx, name, from, n)
}

// folder returns a temporary folder with a short name, for the length of a socket's path.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// weights returns a safetensors file with one tensor of n bytes.
func weights(n int, seed byte) []byte {
	head := fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, n, n)
	b := append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)
	row := make([]byte, 1<<16)
	for i := range row {
		row[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	for i := byte(0); n > 0; i++ {
		row[0] = i // makes all rows differ
		b = append(b, row[:min(n, len(row))]...)
		n -= len(row)
	}
	return b
}

// lab is one daemon with a source in memory, and the reports it sent to the controller.
type lab struct {
	*Daemon
	t       *testing.T
	dir     string
	mem     *sourcetest.Memory
	store   *nodestore.Store
	dialers chan string
	log     *logBuffer
	stop    func() error // effective once

	mu      sync.Mutex
	reports []controlstream.Report
	changed chan struct{} // closed and replaced with each report
}

type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

const modelLocation = "mem://models/llama"

// aModel puts a model with n bytes of weights at a location.
func aModel(mem *sourcetest.Memory, location string, n int, seed byte) {
	mem.Put(location, "config.json", []byte(`{"model_type":"llama"}`))
	mem.Put(location, "model.safetensors", weights(n, seed))
}

func newLab(t *testing.T, edit func(*Options, *nodestore.Options, *sourcetest.Memory)) *lab {
	t.Helper()
	return restart(t, folder(t), edit)
}

func restart(t *testing.T, dir string, edit func(*Options, *nodestore.Options, *sourcetest.Memory)) *lab {
	t.Helper()
	l := &lab{t: t, dir: dir, mem: &sourcetest.Memory{}, dialers: make(chan string, 16), log: &logBuffer{}, changed: make(chan struct{})}
	aModel(l.mem, modelLocation, 100_000, 1)
	log := slog.New(slog.NewTextHandler(l.log, nil))
	storeOptions := nodestore.Options{Node: "node-a", Data: dir, Copies: true, Log: log}
	o := Options{
		Node: "node-a", Version: "v1", Dir: dir, Memory: 1 << 30, Log: log,
		IdentifyPod: func(*net.UnixConn) (string, error) {
			uid := <-l.dialers
			if uid == "" {
				return "", errNoPod
			}
			return uid, nil
		},
		Send: l.receive,
	}
	if edit != nil {
		edit(&o, &storeOptions, l.mem)
	}
	sh, err := nodestore.Open(storeOptions)
	if err != nil {
		t.Fatal(err)
	}
	sh.Sources()["mem"] = l.mem // before anything is staged
	o.Store, l.store = sh, sh
	l.Daemon = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	l.stop = sync.OnceValue(func() error {
		cancel()
		err := <-ended
		sh.Close()
		return err
	})
	t.Cleanup(func() {
		if err := l.stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(l.log.String())
		}
	})
	select {
	case <-l.Ready():
	case err := <-ended:
		t.Fatal("ended: ", err)
	case <-time.After(testTimeout):
		t.Fatal("does not serve")
	}
	return l
}

func (l *lab) receive(u controlstream.Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reports = append(l.reports, u)
	close(l.changed)
	l.changed = make(chan struct{})
}

// until waits for a report that meets a condition.
func (l *lab) until(description string, is func(controlstream.Report) bool) controlstream.Report {
	l.t.Helper()
	deadline := time.After(testTimeout)
	for {
		l.mu.Lock()
		reports, changed := l.reports, l.changed
		l.mu.Unlock()
		for _, u := range reports {
			if is(u) {
				return u
			}
		}
		select {
		case <-changed:
		case <-deadline:
			l.t.Fatalf("the controller does not hear %s; it heard %+v\n%s", description, reports, l.log)
		}
	}
}

// eventually polls a condition that nothing signals.
func (l *lab) eventually(description string, is func() bool) {
	l.t.Helper()
	testkit.Eventually(l.t, description, func() (bool, string) { return is(), l.log.String() })
}

// caller is a shim's end of a connection.
type caller struct {
	*jsonsocket.Conn
	t *testing.T
}

// dial connects a pod, without a hello.
func (l *lab) dial(uid string) *caller {
	l.t.Helper()
	l.dialers <- uid
	conn, err := net.Dial("unix", filepath.Join(l.dir, SocketPath))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { conn.Close() })
	conn.SetReadDeadline(time.Now().Add(testTimeout))
	return &caller{jsonsocket.NewConn(conn, controlstream.MaxLine), l.t}
}

// pod connects a pod and waits for its Welcome.
func (l *lab) pod(uid string) *caller {
	l.t.Helper()
	p := l.dial(uid)
	p.send(controlstream.FromPod{Hello: &controlstream.Shim{PodIP: "10.0.0.7", Port: 8080, Version: "v1"}})
	m := p.receive()
	if m.Welcome == nil || *m.Welcome != (controlstream.Welcome{Node: "node-a", UID: uid, Store: l.dir}) {
		l.t.Fatalf("welcome: %+v", m)
	}
	return p
}

func (c *caller) send(m controlstream.FromPod) {
	c.t.Helper()
	if err := c.Send(m); err != nil {
		c.t.Fatal(err)
	}
}

func (c *caller) receive() (m controlstream.ToPod) {
	c.t.Helper()
	if err := c.Receive(&m); err != nil {
		c.t.Fatalf("nothing is heard: %v", err)
	}
	return m
}

// want requests a source.
func (c *caller) want(id int, source string, files ...string) {
	c.t.Helper()
	c.send(controlstream.FromPod{Stage: &controlstream.Stage{ID: id, Source: source, Files: files}})
}

// answer waits for the end of a staging; states are those reported before it.
func (c *caller) answer(id int) (m controlstream.ToPod, states []string) {
	c.t.Helper()
	for {
		m = c.receive()
		switch {
		case m.Staging != nil && m.Staging.ID == id:
			states = append(states, m.Staging.State)
		case m.Staged != nil && m.Staged.ID == id, m.Failed != nil && m.Failed.ID == id:
			return m, states
		}
	}
}

// staged waits for a successful staging.
func (c *caller) staged(id int) controlstream.Staged {
	c.t.Helper()
	m, _ := c.answer(id)
	if m.Staged == nil {
		c.t.Fatalf("failed: %+v", m.Failed)
	}
	return *m.Staged
}

// messages waits until the daemon closes the connection, and returns the lines before that.
func (c *caller) messages() (all []controlstream.ToPod) {
	c.t.Helper()
	for {
		var m controlstream.ToPod
		err := c.Receive(&m)
		if err == nil {
			all = append(all, m)
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.t.Fatal("it has not hung up")
		}
		if err != io.EOF && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
			c.t.Fatal(err)
		}
		return all
	}
}

// inUse reports whether a checkpoint is leased.
func (l *lab) inUse(digest string) bool {
	l.t.Helper()
	list, err := l.store.Checkpoints().List()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, e := range list {
		if e.Digest == digest {
			return e.Leased
		}
	}
	return false
}

func isReady() functions.ReplicaStatus {
	return functions.ReplicaStatus{State: functions.Ready, Endpoint: "http://10.0.0.7:8080"}
}
