package replica

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// TestWhatIsAsked: what the stager, the engine and the supervisor are asked for is what the
// replica's options say, and a later agent finds it in the notes of the process.
func TestWhatIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{stageTime: time.Second, loadTime: 4 * time.Second}
		o := n.options()
		o.Dir, o.Digest, o.GPUs, o.GPUMemory, o.GPUName, o.Scratch, o.Cache = "/models", "sha", []int{3, 1, 2}, 80<<30, "H200", "/scratch", "key"
		o.Spec.Files, o.Spec.Exclude, o.Spec.Weights = []string{"*.py"}, []string{"logs"}, "*Q4*"
		o.Spec.Resources = functions.Resources{GPUs: 3, GPUMemory: 10 << 30}
		o.FreeGPU = func(index int) (functions.Bytes, bool) { return functions.Bytes(20+index) << 30, true }
		var asked engine.Request
		plan := &confine.Plan{}
		o.Confine = func(cmd *engine.Command, r engine.Request) (*confine.Plan, error) {
			asked = r
			cmd.Dir, cmd.ScratchFiles = "/work", map[string]string{"f": "x"}
			return plan, nil
		}
		o.ForkParent = func(cmd engine.Command) (string, string) { return "", "no parent of " + cmd.Dir }
		began := time.Now()
		l := startReplica(t, o, New)
		time.Sleep(time.Minute)
		expectState(t, l, functions.Ready)
		want := StageRequest{Source: "m", Dir: "/models", Digest: "sha", Files: o.Spec.StagedFiles(), Cache: "key", Engine: functions.EngineVLLM}
		if len(n.asked) != 1 || !reflect.DeepEqual(n.asked[0], want) {
			t.Errorf("staged %+v, want %+v", n.asked, want)
		}
		if asked.Name != "m" || asked.Path != "/store/m" || asked.Dir != "/models" || fmt.Sprint(asked.GPUs) != "[3 1 2]" ||
			asked.GPUMemory != 80<<30 || asked.GPUFree != 21<<30 ||
			asked.Port <= 0 || asked.Key == "" || !strings.HasPrefix(asked.Scratch, "/scratch/") || asked.Streamed ||
			!reflect.DeepEqual(asked.Spec, o.Spec) {
			t.Errorf("the engine is prepared by %+v", asked)
		}
		p := n.spawns[0]
		var m Meta
		if err := json.Unmarshal(p.Meta, &m); err != nil || p.ID != "r1" || p.Dir != "/work" || p.Confine != plan || p.Scratch == "" ||
			len(p.ScratchFiles) != 1 || len(p.Argv) == 0 || p.ForkSocket != "" {
			t.Errorf("%+v, %v", p, err)
		}
		if !m.Began.Equal(began) || !m.Started.Equal(began.Add(time.Second)) || len(m.Phases) != 1 || m.Key != asked.Key ||
			m.Port != asked.Port || m.Health != "/health" {
			t.Errorf("notes %+v", m)
		}
		m.Began, m.Started, m.Phases, m.Key, m.Port, m.Health = time.Time{}, time.Time{}, nil, "", 0, ""
		note := Meta{ID: "r1", Team: "default", Model: "m", Spec: o.Spec, Dir: "/models", Digest: "sha", GPUs: o.GPUs, Path: "/store/m",
			Bytes: 100, Weights: "staged now",
			Start: functions.StartPlain, Note: "no parent of /work"}
		if !reflect.DeepEqual(m, note) {
			t.Errorf("notes %+v, want %+v", m, note)
		}
		st := l.Status()
		if st.Weights != "staged now" || st.Tier != functions.TierGPU || st.Start != functions.StartPlain ||
			st.StartNote != "no parent of /work" || st.Key != asked.Key ||
			fmt.Sprint(st.GPUs) != "[3 1 2]" || !strings.HasSuffix(st.Endpoint, fmt.Sprint(":", asked.Port)) ||
			!reflect.DeepEqual(*st.Spec, o.Spec) {
			t.Errorf("status %+v", st)
		}
		for id, bad := range map[string]string{"r1": `{"id":"r2","port":1}`, "r2": `{"id":"r2","port":0}`, "r3": `{"id":"r3","port":65536}`, "r4": `{`} {
			if _, err := Adopt(o, supervisor.Running{ID: id, Meta: []byte(bad)}, nil); err == nil || !strings.Contains(err.Error(), id) {
				t.Errorf("%s: %v", bad, err)
			}
		}
		if m, err := ParseMeta(supervisor.Running{ID: "r1", Meta: p.Meta}); err != nil || m.Port != asked.Port {
			t.Errorf("%+v, %v", m, err)
		}
	})
}

// TestCommandsOnce: a command of the owner is followed once, whatever comes after it.
func TestCommandsOnce(t *testing.T) {
	n := &fakeNode{}
	virtual(t, n, func(t *testing.T, l *replicaRun) {
		time.Sleep(time.Minute)
		expectState(t, l, functions.Ready)
		before := n.tokens.Load()
		l.Suspect("x")
		time.Sleep(time.Minute)
		once := n.tokens.Load() - before
		l.WakeUp("y") // nothing sleeps
		time.Sleep(time.Minute)
		if got := n.tokens.Load() - before; once == 0 || got != once {
			t.Errorf("%d probes for one suspicion, then %d", once, got)
		}
	})
}

// TestFreeGPUMemoryIsKnown: the engine is told of the least free memory, and of none where a
// GPU does not say; a start that waited says so until it goes on.
func TestFreeGPUMemoryIsKnown(t *testing.T) {
	for _, x := range []struct {
		free []functions.Bytes // of GPU 0, 1 and 2; 0 is not known
		want functions.Bytes
	}{{[]functions.Bytes{30, 20, 40}, 20}, {[]functions.Bytes{20, 30, 40}, 20}, {[]functions.Bytes{30, 0, 40}, 0}, {nil, 0}} {
		n := &fakeNode{}
		o := n.options()
		o.GPUs = []int{0, 1, 2}
		if x.free != nil {
			o.FreeGPU = func(index int) (functions.Bytes, bool) { return x.free[index], x.free[index] > 0 }
		}
		if got := New(o).leastFreeGPU(); got != x.want {
			t.Errorf("%v: %d, want %d", x.free, got, x.want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{}
		o := n.options()
		o.GPUs, o.Spec.Resources = []int{1}, functions.Resources{GPUs: 1, GPUMemory: 10 << 30}
		began := time.Now()
		o.FreeGPU = func(int) (functions.Bytes, bool) {
			if time.Since(began) < time.Minute {
				return 9 << 30, true
			}
			return 10 << 30, true
		}
		l := startReplica(t, o, New)
		time.Sleep(30 * time.Second)
		if st := l.Status(); st.State != functions.Loading ||
			st.StartNote != "waits for GPU memory: GPU 1 has 9 GiB free, the model needs 10 GiB" || n.spawned.Load() != 0 {
			t.Errorf("%+v, %d processes", st, n.spawned.Load())
		}
		time.Sleep(time.Minute)
		if st := l.Status(); st.State != functions.Ready || st.StartNote != "" {
			t.Errorf("%+v", st)
		}
	})
}
