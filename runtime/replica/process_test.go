package replica

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/keeper"
)

// bench is one keeper in a folder of its own, with what was started watched to
// be gone at the end.
type workbench struct {
	t      *testing.T
	dir    string
	client *keeper.Client
}

func newBench(t *testing.T) *workbench {
	t.Helper()
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	sock := filepath.Join(dir, "keeper.sock")
	c, err := keeper.Ensure(ctx, keeper.Start{Exe: exe, Args: []string{"test-keeper", sock, dir, "5s"}, Socket: sock, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	b := &workbench{t, dir, c}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.End(ctx, 100*time.Millisecond); err != nil {
			t.Error(err)
		}
		eventually(t, "the keeper is gone", func() bool { return gone(c.PID()) })
	})
	return b
}

func (b *workbench) options(id string, modes ...string) Options {
	exe, _ := os.Executable()
	return Options{
		ID: id, Team: "default", Model: "m", Dir: b.dir,
		Spec: functions.ModelSpec{
			Engine: functions.EngineCommand,
			Args:   append([]string{exe, "test-engine", "{port}", "{name}"}, modes...),
			Deadlines: functions.Deadlines{
				Stage: functions.Duration(5 * time.Second), Start: functions.Duration(10 * time.Second),
				FirstToken: functions.Duration(5 * time.Second), Hang: functions.Duration(time.Second), Drain: functions.Duration(time.Second),
			},
		},
		Spawner: b.client,
	}
}

// life runs a replica and keeps what it said.
type life struct {
	t *testing.T
	*Replica
	mu     sync.Mutex
	said   []functions.ReplicaStatus
	done   chan error
	cancel context.CancelFunc
}

func live(t *testing.T, o Options, make func(Options) *Replica) *life {
	l := &life{t: t, done: make_()}
	o.OnChange = func(s functions.ReplicaStatus) {
		l.mu.Lock()
		l.said = append(l.said, s)
		l.mu.Unlock()
	}
	l.Replica = make(o)
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	go func() { l.done <- l.Run(ctx) }()
	t.Cleanup(cancel)
	return l
}

func make_() chan error { return make(chan error, 1) }

func (l *life) states() (out []functions.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.said {
		if len(out) == 0 || out[len(out)-1] != s.State {
			out = append(out, s.State)
		}
	}
	return out
}

func (l *life) wait(s functions.State, within time.Duration) functions.ReplicaStatus {
	l.t.Helper()
	end := time.Now().Add(within)
	for {
		st := l.Status()
		if st.State == s {
			return st
		}
		if time.Now().After(end) || st.State.Over() {
			l.t.Fatalf("state %s (%s) after %v, want %s; said %v", st.State, st.Error, within, s, l.states())
		}
		pause()
	}
}

// over waits for the end of Run.
func (l *life) over(within time.Duration) functions.ReplicaStatus {
	l.t.Helper()
	select {
	case err := <-l.done:
		if err != nil {
			l.t.Fatalf("Run: %v", err)
		}
	case <-time.After(within):
		l.t.Fatalf("not over after %v: %s", within, l.Status().State)
	}
	return l.Status()
}

// pause between two looks at another process.
func pause() { <-time.After(2 * time.Millisecond) }

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); pause() {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func gone(pid int) bool { return syscall.Kill(pid, 0) == syscall.ESRCH }

func TestProcessReadyAndUnload(t *testing.T) {
	b := newBench(t)
	l := live(t, b.options("r1", "slow=50ms"), New)
	st := l.wait(functions.Ready, 5*time.Second)
	pid := b.pid("r1")
	res, err := http.Get(st.Endpoint + "/health")
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("health: %v %v", res, err)
	}
	res.Body.Close()
	var phases []string
	for _, p := range st.Phases {
		phases = append(phases, string(p.Phase))
		t.Logf("%s %.4f + %.4f", p.Phase, p.Start, p.Duration)
	}
	if want := []string{"spawn", "load", "warmup"}; !slices.Equal(phases, want) {
		t.Errorf("phases %v, want %v", phases, want)
	}
	if b, err := os.ReadFile(l.LogPath()); err != nil || !strings.Contains(string(b), "fake engine") {
		t.Errorf("log %q %v", b, err)
	}
	l.Unload(time.Second, "idle")
	if st := l.over(3 * time.Second); st.State != functions.Unloaded {
		t.Errorf("state %s", st.State)
	}
	if !gone(pid) {
		t.Error("the engine lives on")
	}
	want := []functions.State{functions.Downloading, functions.Loading, functions.Ready, functions.Draining, functions.Unloaded}
	if got := l.states(); !slices.Equal(got, want) {
		t.Errorf("said %v, want %v", got, want)
	}
}

// pid of a process of the keeper.
func (b *workbench) pid(id string) int {
	b.t.Helper()
	ps, err := b.client.List(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, p := range ps {
		if p.ID == id {
			return p.PID
		}
	}
	b.t.Fatalf("no process %s", id)
	return 0
}

var _ = fmt.Sprint
var _ = strconv.Itoa
