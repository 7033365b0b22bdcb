package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/testkit/tensors"
)

// writeLora writes an adapter of a rank over modules of a small Llama.
func writeLora(t testing.TB, dir string, rank int, modules ...string) {
	t.Helper()
	var ts []tensors.Source
	for _, m := range modules {
		p := "base_model.model.model.layers.0.self_attn." + m
		ts = append(ts, tensors.Source{Name: p + ".lora_A.weight", Shape: []int{rank, 4}, Data: make([]float32, rank*4)},
			tensors.Source{Name: p + ".lora_B.weight", Shape: []int{4, rank}, Data: make([]float32, rank*4)})
	}
	config := fmt.Sprintf(`{"peft_type":"LORA","r":%d,"target_modules":["q_proj"]}`, rank)
	write(t, filepath.Join(dir, "adapter_config.json"), func(w io.Writer) error { _, err := io.WriteString(w, config); return err })
	write(t, filepath.Join(dir, "adapter_model.safetensors"), func(w io.Writer) error { return tensors.Write(w, "F32", ts) })
}

func write(t testing.TB, path string, f func(io.Writer) error) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := os.Create(path)
	if err == nil {
		err = errors.Join(f(w), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestInspect(t *testing.T) {
	config := func(s string) func(dir string) {
		return func(dir string) {
			if err := os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(s), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	weights := func(s string) func(dir string) {
		return func(dir string) {
			if err := os.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), []byte(s), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	one := []string{"q_proj"}
	for _, c := range []struct {
		name           string
		rank           int
		modules        []string
		change         func(dir string)
		declared, most int
		note, err      string
	}{
		{name: "good", rank: 8, modules: []string{"q_proj", "o_proj"}},
		{name: "keys and values", rank: 8, modules: []string{"v_proj", "q_proj", "k_proj"}, note: "it changes k_proj and v_proj, so its KV cache is shared with neither the model nor other adapters"},
		{name: "all that change the cache", rank: 8, modules: []string{"query_key_value", "kv_proj", "c_attn", "qkv_proj", "k_proj", "v_proj"},
			note: "it changes c_attn and k_proj and kv_proj and qkv_proj and query_key_value and v_proj, so"},
		{name: "keys of two layers", rank: 8, change: func(d string) {
			var ts []tensors.Source
			for _, name := range []string{"0.v_proj.lora_A", "0.v_proj.lora_B", "1.k_proj.lora_A", "1.k_proj.lora_B", "1.v_proj.lora_A", "1.v_proj.lora_B"} {
				ts = append(ts, tensors.Source{Name: name + ".weight", Shape: []int{8, 8}, Data: make([]float32, 64)})
			}
			write(t, filepath.Join(d, "adapter_model.safetensors"), func(w io.Writer) error { return tensors.Write(w, "F32", ts) })
		}, note: "it changes k_proj and v_proj, so"},
		{name: "larger than declared", rank: 32, modules: one, declared: 16, most: 64, err: "its rank is 32 and the model file says 16: raise rank there"},
		{name: "as declared", rank: 16, modules: one, declared: 16, most: 16},
		{name: "larger than the default", rank: 32, modules: one, err: "its rank is 32 and the engine takes 16 at most: say rank: 32 in the model file, or --max-lora-rank in its args"},
		{name: "its weights are larger than it says", rank: 32, modules: one, change: config(`{"r":8}`), err: "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight has shape [32 4], which is no rank of at most 16"},
		{name: "a larger rank in a pattern", rank: 8, modules: one, change: config(`{"r":8,"rank_pattern":{"q_proj":64}}`), err: "its rank is 64 and the engine takes 16 at most"},
		{name: "a smaller rank in a pattern", rank: 64, modules: one, change: config(`{"r":64,"rank_pattern":{"v_proj":8}}`), err: "its rank is 64 and the engine takes 16 at most"},
		{name: "a folder of checkpoints", rank: 8, modules: one, change: func(d string) {
			os.Mkdir(filepath.Join(d, "checkpoint-600"), 0o755)
			os.Rename(filepath.Join(d, "adapter_config.json"), filepath.Join(d, "checkpoint-600", "adapter_config.json"))
		}, err: "not a LoRA adapter: it has no adapter_config.json (name checkpoint-600 below it)"},
		{name: "no config", rank: 8, modules: one, change: func(d string) { os.Remove(filepath.Join(d, "adapter_config.json")) }, err: "not a LoRA adapter: it has no adapter_config.json"},
		{name: "no weights", rank: 8, modules: one, change: func(d string) { os.Remove(filepath.Join(d, "adapter_model.safetensors")) }, err: "there is no adapter_model.safetensors in it"},
		{name: "config is no JSON", rank: 8, modules: one, change: config(`r: 8`), err: "adapter_config.json: "},
		{name: "config is endless", rank: 8, modules: one, change: config(strings.Repeat(" ", 1<<20+1)), err: "adapter_config.json: it is larger than 1048576 bytes"},
		{name: "no rank", rank: 8, modules: one, change: config(`{}`), err: "adapter_config.json has no rank (r)"},
		{name: "another kind", rank: 8, modules: one, change: config(`{"peft_type":"IA3","r":8}`), err: `its peft_type is "IA3"; only LORA can be served`},
		{name: "lower case", rank: 8, modules: one, change: config(`{"peft_type":"lora","r":8}`)},
		{name: "its relative", rank: 8, modules: one, change: config(`{"peft_type":"LORAX","r":8}`), err: `its peft_type is "LORAX"`},
		{name: "DoRA", rank: 8, modules: one, change: config(`{"r":8,"use_dora":true}`), err: "it is a DoRA adapter; only plain LoRA can be served"},
		{name: "truncated", rank: 8, modules: one, change: weights("\x40\x00\x00\x00\x00\x00\x00\x00{}"), err: "adapter_model.safetensors: the file has 10 bytes and its header alone should have 72: it was cut short"},
		{name: "empty", rank: 8, modules: one, change: weights(""), err: "adapter_model.safetensors: the file has 0 bytes, too few for a header"},
		{name: "endless header", rank: 8, modules: one, change: weights("\xff\xff\xff\xff\x00\x00\x00\x00{}"), err: "adapter_model.safetensors: the header claims 4294967295 bytes; at most 16777216 are read"},
		{name: "no LoRA in it", rank: 8, err: "adapter_model.safetensors holds no LoRA weights (….lora_A.weight, as peft's save_pretrained names them) among 0 tensors"},
		{name: "a rank of three numbers", rank: 8, change: func(d string) {
			write(t, filepath.Join(d, "adapter_model.safetensors"), func(w io.Writer) error {
				return tensors.Write(w, "F32", []tensors.Source{{Name: "x.lora_A.weight", Shape: []int{8, 2, 2}, Data: make([]float32, 32)},
					{Name: "x.lora_B.weight", Shape: []int{2, 8}, Data: make([]float32, 16)}})
			})
		}, err: "x.lora_A.weight has shape [8 2 2], which is no rank"},
		{name: "half of a pair", rank: 8, modules: one, change: func(d string) {
			write(t, filepath.Join(d, "adapter_model.safetensors"), func(w io.Writer) error {
				return tensors.Write(w, "F32", []tensors.Source{{Name: "x.q_proj.lora_A.weight", Shape: []int{8, 1}, Data: make([]float32, 8)}})
			})
		}, err: "x.q_proj.lora_A.weight has no lora_B beside it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			writeLora(t, dir, c.rank, c.modules...)
			if c.change != nil {
				c.change(dir)
			}
			note, err := inspectAdapter(dir, c.declared, c.most)
			if !strings.HasPrefix(note, c.note) || (note == "") != (c.note == "") || (err == nil) != (c.err == "") ||
				err != nil && !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("%q %v\nwant %q %s", note, err, c.note, c.err)
			}
		})
	}
}

func FuzzInspect(f *testing.F) {
	dir := f.TempDir()
	writeLora(f, dir, 8, "q_proj")
	good, _ := os.ReadFile(filepath.Join(dir, "adapter_model.safetensors"))
	f.Add([]byte(`{"r":8}`), good)
	f.Add([]byte(`{"r":8,"target_modules":"all-linear"}`), good[:20])
	d := f.TempDir()
	f.Fuzz(func(t *testing.T, config, weights []byte) {
		os.WriteFile(filepath.Join(d, "adapter_config.json"), config, 0o600)
		os.WriteFile(filepath.Join(d, "adapter_model.safetensors"), weights, 0o600)
		inspectAdapter(d, 16, 16)
	})
}

// library stages the model from nowhere, and adapters from a folder.
type library struct {
	*fakeNode
	dir      string
	mu       sync.Mutex
	staged   []string
	released []string
	slow     time.Duration
	err      error
}

func (l *library) Stage(ctx context.Context, req StageRequest, progress func(have, total functions.Bytes)) (Checkpoint, error) {
	if req.Source == "m" {
		return l.fakeNode.Stage(ctx, req, progress)
	}
	select {
	case <-time.After(l.slow):
	case <-ctx.Done():
		return Checkpoint{}, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return Checkpoint{}, l.err
	}
	l.staged = append(l.staged, req.Source)
	return Checkpoint{Path: filepath.Join(l.dir, req.Source), Release: func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.released = append(l.released, req.Source)
	}}, nil
}

func (l *library) lists() (staged, released string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.staged, " "), strings.Join(l.released, " ")
}

// TestOtherForModel: an adapter in the place of a model is refused, and GGUF before engines of safetensors.
func TestOtherForModel(t *testing.T) {
	const adapter, gguf = "under adapters", "engine: llamacpp"
	for files, words := range map[string]string{
		"adapter_config.json adapter_model.safetensors": adapter, "adapter_config.json config.json model.safetensors": "",
		"adapter_config.json m.gguf": gguf, "m.gguf": gguf, "m.gguf config.json": "", "adapter_config.json params.json": "",
		"model.safetensors": "", "": "",
	} {
		want := words != ""
		dir := filepath.Join(t.TempDir(), "a[1]") // no pattern
		for _, name := range append(strings.Fields(files), "x") {
			write(t, filepath.Join(dir, name), func(io.Writer) error { return nil })
		}
		for e, want := range map[functions.Engine]bool{functions.EngineVLLM: want, functions.EngineEmber: want, functions.EngineSGLang: want,
			functions.EngineCommand: false, functions.EngineLlamaCpp: words == adapter} {
			released := 0
			for _, c := range []Checkpoint{{Path: dir}, {Path: dir, Release: func() { released++ }}} {
				if err := checkStaged(e, c, nil).err; (err != nil) != want || err != nil && !strings.Contains(err.Error(), words) {
					t.Errorf("%s of %s: %v", files, e, err)
				}
			}
			if released > 0 != want {
				t.Errorf("%s of %s: released %d times", files, e, released)
			}
		}
	}
}

func TestLoadAdapter(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"a", "b", "c"} {
		writeLora(t, filepath.Join(dir, n), 8, "q_proj")
	}
	writeLora(t, filepath.Join(dir, "kv"), 8, "k_proj")
	writeLora(t, filepath.Join(dir, "large"), 64, "q_proj")
	agentLeft := false
	run := func(name string, change func(*Options), f func(t *testing.T, lib *library, l *replicaRun)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lib := &library{fakeNode: &fakeNode{}, dir: dir}
				o := lib.options()
				o.Stager = lib
				for _, n := range []string{"a", "b", "c", "kv", "large"} {
					o.Spec.Adapters = append(o.Spec.Adapters, functions.Adapter{Name: n, Source: n})
				}
				o.Spec.Args = []string{"--max-loras", "2"}
				if change != nil {
					change(&o)
				}
				l := startReplica(t, o, New)
				time.Sleep(time.Second)
				expectState(t, l, functions.Ready)
				f(t, lib, l)
				if !agentLeft && !l.Status().State.Over() {
					l.Unload(0, "done")
					l.ended(t, functions.Unloaded, "")
				}
				staged, released := lib.lists()
				s, r := strings.Fields(staged), strings.Fields(released)
				slices.Sort(s)
				slices.Sort(r)
				if !slices.Equal(s, r) {
					t.Errorf("staged %v, released %v", s, r)
				}
			})
		})
	}
	load := func(t *testing.T, l *replicaRun, name, code, reason string) {
		t.Helper()
		err := l.LoadAdapter(t.Context(), name)
		var ae *functions.AdapterError
		switch {
		case code == "" && err != nil, code != "" && !errors.As(err, &ae):
			t.Errorf("%s: %v", name, err)
		case code != "" && (ae.Code != code || !strings.HasPrefix(ae.Message, reason)):
			t.Errorf("%s: %s %s\nwant %s %s", name, ae.Code, ae.Message, code, reason)
		}
	}
	run("by use, two slots", nil, func(t *testing.T, lib *library, l *replicaRun) {
		for _, n := range []string{"a", "b", "a", "c", "a"} {
			load(t, l, n, "", "")
		}
		synctest.Wait()
		if got := lib.called(); got != "load a, load b, unload b, load c" {
			t.Error(got)
		}
		if st := l.Status(); !slices.Equal(st.Adapters, []string{"a", "c"}) {
			t.Error(st.Adapters)
		}
		if _, released := lib.lists(); released != "b" {
			t.Errorf("released %s", released)
		}
		statuses := l.states()
		if statuses[len(statuses)-1] != functions.Ready {
			t.Error(statuses)
		}
	})
	for name, refusal := range map[string]error{"the engine refuses to unload one": &engine.StatusError{Status: 500, Body: "busy"}, "the answer to an unload is lost": io.ErrUnexpectedEOF} {
		run(name, nil, func(t *testing.T, lib *library, l *replicaRun) {
			load(t, l, "a", "", "")
			load(t, l, "b", "", "")
			lib.keep = refusal
			load(t, l, "c", AdapterUnavailable, "adapter c: no free slot: unload a: ")
			if got := l.Status().Adapters; !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("the engine has a and b, the replica lists %v", got)
			}
			if _, released := lib.lists(); released != "c" {
				t.Errorf("released %s", released)
			}
			load(t, l, "c", "", "")
			if got := lib.called(); got != "load a, load b, unload a, unload a, load c" {
				t.Error(got)
			}
		})
	}
	run("the engine has lost one", nil, func(t *testing.T, lib *library, l *replicaRun) {
		load(t, l, "a", "", "")
		load(t, l, "b", "", "")
		lib.keep = &engine.StatusError{Status: 404, Body: "no such adapter"}
		load(t, l, "c", "", "")
		if got := l.Status().Adapters; !slices.Equal(got, []string{"b", "c"}) {
			t.Error(got)
		}
	})
	run("one load for all who ask", nil, func(t *testing.T, lib *library, l *replicaRun) {
		lib.slow = 10 * time.Second
		done := make(chan error)
		for range 20 {
			go func() { done <- l.LoadAdapter(t.Context(), "a") }()
		}
		for range 20 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if got, _ := lib.lists(); got != "a" || lib.called() != "load a" {
			t.Error(got, lib.called())
		}
	})
	run("the first who asks leaves", nil, func(t *testing.T, lib *library, l *replicaRun) {
		lib.slow = 10 * time.Second
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- l.LoadAdapter(ctx, "a") }()
		synctest.Wait()
		go func() { second <- l.LoadAdapter(t.Context(), "a") }()
		time.Sleep(time.Second)
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := <-second; err != nil {
			t.Error(err)
		}
	})
	run("notes", nil, func(t *testing.T, lib *library, l *replicaRun) {
		load(t, l, "kv", "", "")
		synctest.Wait()
		if note := l.Status().AdapterNotes["kv"]; !strings.HasPrefix(note, "it changes k_proj") {
			t.Error(note)
		}
	})
	run("errors", nil, func(t *testing.T, lib *library, l *replicaRun) {
		load(t, l, "nobody", AdapterNotFound, `model m has no adapter "nobody"`)
		load(t, l, "large", AdapterInvalid, "adapter large: its rank is 64 and the engine takes 16 at most")
		lib.err = errors.New("no such blob")
		load(t, l, "a", AdapterUnavailable, "adapter a: stage: no such blob")
		lib.err = nil
		for _, c := range []struct {
			status int
			code   string
		}{{400, AdapterInvalid}, {404, AdapterNotFound}, {500, AdapterInvalid}, {503, AdapterUnavailable}} {
			lib.refuse = &engine.StatusError{Status: c.status, Body: "no"}
			load(t, l, "a", c.code, fmt.Sprintf("adapter a: HTTP %d: no", c.status))
		}
		lib.refuse = errors.New("EOF")
		load(t, l, "a", AdapterUnavailable, "adapter a: EOF")
		// One that is there, as an adopted engine has it.
		lib.refuse = &engine.StatusError{Status: 400, Body: "The lora adapter 'a' has already been loaded."}
		load(t, l, "a", "", "")
		synctest.Wait()
		if n := l.Status().Adapters; len(n) != 1 {
			t.Error(n)
		}
	})
	confined := filepath.Join(t.TempDir(), "adapters")
	run("of a confined engine", func(o *Options) { o.AdapterDir = confined }, func(t *testing.T, lib *library, l *replicaRun) {
		load(t, l, "a", "", "")
		if _, err := os.Stat(filepath.Join(confined, "a", "adapter_model.safetensors")); err != nil || lib.path != filepath.Join(confined, "a") {
			t.Errorf("loaded from %s: %v", lib.path, err)
		}
		l.Unload(0, "done")
		l.ended(t, functions.Unloaded, "")
		if _, err := os.Stat(confined); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the copies outlive the replica: %v", err)
		}
	})
	left := filepath.Join(t.TempDir(), "adapters")
	run("of a confined engine that is left", func(o *Options) { o.AdapterDir = left }, func(t *testing.T, _ *library, l *replicaRun) {
		load(t, l, "a", "", "")
		l.cancel()
		agentLeft = true
		if err := <-l.done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(left, "a", "adapter_model.safetensors")); err != nil {
			t.Errorf("the engine that runs on has lost its adapter: %v", err)
		}
	})
	agentLeft = false
	noFolder := filepath.Join(t.TempDir(), "file")
	write(t, noFolder, func(io.Writer) error { return nil })
	run("that cannot be linked", func(o *Options) { o.AdapterDir = noFolder }, func(t *testing.T, _ *library, l *replicaRun) {
		load(t, l, "a", AdapterUnavailable, "adapter a: ")
	})
	run("an engine without", func(o *Options) { o.Spec.Engine = functions.EngineSGLang }, func(t *testing.T, lib *library, l *replicaRun) {
		load(t, l, "a", AdapterInvalid, "adapter a: engine sglang loads no adapters while it runs: vllm and ember do; llamacpp takes "+
			"args: [--lora, FILE]")
	})
	run("ended while it is staged", nil, func(t *testing.T, lib *library, l *replicaRun) {
		lib.slow = time.Hour
		done := make(chan error, 1)
		go func() { done <- l.LoadAdapter(t.Context(), "a") }()
		time.Sleep(time.Second)
		l.Unload(0, "stopped")
		if err := <-done; err == nil || err.Error() != "the replica has ended" {
			t.Error(err)
		}
		l.ended(t, functions.Unloaded, "")
		load(t, l, "a", AdapterUnavailable, "adapter a: the replica is not ready")
	})
	run("asleep, and after a deep sleep", func(o *Options) { o.Spec.Env = map[string]string{"VLLM_SERVER_DEV_MODE": "1"} }, func(t *testing.T, lib *library, l *replicaRun) {
		load(t, l, "a", "", "")
		l.Sleep(2, "idle")
		time.Sleep(time.Second)
		load(t, l, "b", AdapterUnavailable, "adapter b: the replica is not ready")
		l.WakeUp("asked for")
		time.Sleep(time.Second)
		if n := l.Status().Adapters; len(n) != 0 {
			t.Error(n)
		}
		load(t, l, "a", "", "")
		if got := lib.called(); got != "load a, sleep 2 wait, wake 2, unload a, load a" {
			t.Error(got)
		}
	})
}

// Notes of a replica reach the agent that adopts it.
func TestMetaStart(t *testing.T) {
	b, err := json.Marshal(Meta{Assignment: Assignment{ID: "r1"}, Port: 1, Start: functions.StartWarm, Key: "sk-1"})
	if err != nil {
		t.Fatal(err)
	}
	var m Meta
	if err := json.Unmarshal(b, &m); err != nil || m.Start != functions.StartWarm || m.Key != "sk-1" {
		t.Error(m, err)
	}
}
