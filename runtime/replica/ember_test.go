package replica

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

// inPlace stages folders by looking at them.
type inPlace struct{}

func (inPlace) Stage(_ context.Context, req StageRequest, _ func(have, total functions.Bytes)) (Checkpoint, error) {
	st, err := os.Stat(filepath.Join(req.Dir, req.Source, "model.safetensors"))
	if err != nil {
		return Checkpoint{}, err
	}
	return Checkpoint{Path: filepath.Join(req.Dir, req.Source), Bytes: functions.Bytes(st.Size())}, nil
}

func (s *testSupervisor) ember(id string) Options {
	exe, _ := os.Executable()
	o := s.options(id)
	o.Stager, o.Programs = inPlace{}, engine.Programs{Thaw: exe}
	o.Spec.Engine, o.Spec.Args, o.Spec.Source = functions.EngineEmber, nil, "./tiny"
	o.Spec.Env = map[string]string{"GORACE": "atexit_sleep_ms=0"}
	return o
}

// The shipped engine from nothing to a token, said by the engine itself.
func TestEmber(t *testing.T) {
	t.Parallel()
	b := newTestSupervisor(t)
	if _, err := checkpoint.Folder(filepath.Join(b.dir, "tiny"), checkpoint.Tiny,
		strings.Repeat("the ice melts and the water runs over the stones ", 40), 1); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		began := time.Now()
		l := startReplica(t, b.ember(fmt.Sprintf("tiny%d", i)), New)
		st := l.wait(functions.Ready, testTimeout)
		t.Logf("READY after %v: %v", time.Since(began), st.Phases)
		if st.Bytes == 0 || len(st.Phases) != 4 {
			t.Errorf("%+v", st)
		}
		testkit.Eventually(t, "its metrics are read", func() bool {
			m := readMetrics(t.Context(), l.eng, time.Second)
			return m.err == nil && m.Load && m.Flow && m.Tokens > 0
		})
		l.Unload(time.Second, "done")
		if st := l.waitEnd(testTimeout); st.State != functions.Unloaded {
			t.Error(st.State, st.Error)
		}
	}
	t.Run("killed", func(t *testing.T) {
		l := startReplica(t, b.ember("k"), New)
		l.wait(functions.Ready, testTimeout)
		began := time.Now()
		syscall.Kill(b.pid("k"), syscall.SIGKILL)
		if st := l.waitEnd(testTimeout); st.Error != "ember ended while ready: ended by signal 9 (killed)" {
			t.Error(st.Error)
		}
		t.Logf("noticed after %v", time.Since(began))
	})
	t.Run("weights truncated", func(t *testing.T) {
		path := filepath.Join(b.dir, "tiny", "model.safetensors")
		if err := os.Truncate(path, 1000); err != nil {
			t.Fatal(err)
		}
		l := startReplica(t, b.ember("t"), New)
		st := l.waitEnd(testTimeout)
		t.Log(st.Error)
		if st.State != functions.Failed || !strings.HasPrefix(st.Error, "ember ended while loading: ") ||
			strings.Contains(st.Error, "exit code") {
			t.Errorf("%s %q", st.State, st.Error)
		}
	})
}
