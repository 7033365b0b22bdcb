package replica

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/testkit"
)

// recorded is a replica whose vLLM is a script: it writes a kept log of a real
// one, and then does what the real one did.
func (s *testSupervisor) recorded(t *testing.T, id, script string) Options {
	t.Helper()
	exe := filepath.Join(s.dir, id+"-vllm")
	if err := os.WriteFile(exe, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	o := s.options(id)
	o.Stager = inPlaceStager{s.dir}
	o.Spec.Engine, o.Spec.Args, o.Spec.Source = functions.EngineVLLM, nil, "model"
	o.Programs = engine.Programs{
		Environ: func() []string { return []string{"THAW_ENGINE_VLLM=" + exe, "PATH=" + os.Getenv("PATH")} },
		Host:    func() engine.Host { return engine.Host{Nodes: 1, BF16: true} },
	}
	return o
}

// Whatever is wrong with an engine or what it is given: one clear line, with
// the engine's own first cause, and none waits for an engine that knows and stays.
func TestBadInput(t *testing.T) {
	t.Parallel()
	b := newTestSupervisor(t)
	logs, err := filepath.Abs("../engine/testdata/logs")
	if err != nil {
		t.Fatal(err)
	}
	says := func(log string, then string) string {
		return "#!/bin/sh\ncat " + filepath.Join(logs, log+".log") + " >&2\n" + then + "\n"
	}
	for i, c := range []struct{ name, script, why, more string }{
		{"a wrong flag", says("vllm-bad-flag", "exit 2"), "vllm ended while loading: bad args in the model file: unrecognized arguments: --no-such-flag", ""},
		{"a wrong value", says("vllm-bad-value", "exit 2"), "vllm ended while loading: bad args in the model file: argument --max-num-batched-tokens: invalid human_readable_int value: 'x'", ""},
		{"a model it does not know", says("vllm-unknown-model", "exit 1"), "vllm ended while loading: The checkpoint you are trying to load has model type `nosuch` but", ""},
		{"a shard is missing", says("vllm-missing-shard", "exit 1"), "vllm ended while loading: FileNotFoundError: Weight files referenced in index but missing: {'m-shard/model-00002-of-00002.safetensors'}", ""},
		{"memory does not suffice", says("vllm-no-memory", "exit 1"), "vllm ended while loading: out of memory: Available memory on node 0 (17.09/19.96 GiB) on kv cache allocation is less than requested", ""},
		{"memory for the KV cache does not suffice", says("vllm-kv-too-small", "exit 1"), "vllm ended while loading: too little memory for the KV cache: To serve at least one request", ""},
		{"out of GPU memory", says("vllm-oom-load", "exit 1"), "vllm ended while loading: out of GPU memory: CUDA out of memory.", ""},
		{"it knows, and does not end", says("vllm-no-memory", "sleep 600"), "vllm ended while loading: out of memory: Available memory on node 0", ""},
		{"it knows, and ignores SIGTERM too", says("vllm-missing-shard", "trap '' TERM; sleep 600 & sleep 600"), "vllm ended while loading: FileNotFoundError: Weight files", ""},
		{"an environment that is broken", "#!/bin/sh\necho 'Traceback (most recent call last):\n  File \"/opt/vllm/bin/vllm\", line 5, in " +
			"<module>\n    from vllm.entrypoints.cli.main import main\nImportError: libcudart.so.12: cannot open shared object file: No such " +
			"file or directory' >&2; exit 1\n",
			"vllm ended while loading: ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", ""},
		{"an environment without vLLM", "#!/usr/bin/env python3\nimport sys\nsys.path[:] = [p for p in sys.path if 'site-packages' not in p]\nfrom vllm.entrypoints.cli.main import main\n", "vllm ended while loading: ModuleNotFoundError: No module named 'vllm'", ""},
		{"an interpreter that is gone", "#!/opt/gone/bin/python\n", "engine vllm: ", "its first line names the interpreter /opt/gone/bin/python, which is not there"},
		{"an interpreter with the line end of Windows", "#!/bin/sh\r\necho\r\n", "engine vllm: ", "line end of Windows (dos2unix "},
		{"a program for another processor", elfProgram(elf.EM_S390, ""), "engine vllm: ", "exec format error: it is built for S390, and this machine is "},
		{"a program without its loader", elfProgram(elf.EM_NONE, "/lib/ld-gone.so.1"), "engine vllm: ", "with the loader /lib/ld-gone.so.1, which is not there"},
		{"text without #!", "echo hello\n", "engine vllm: ", "exec format error (the program is built for another kind"},
		{"no program", "", "engine vllm: THAW_ENGINE_VLLM=", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := fmt.Sprintf("bad-%d", i)
			o := b.recorded(t, id, c.script)
			if c.script == "" {
				os.Remove(filepath.Join(b.dir, id+"-vllm"))
			}
			if strings.HasPrefix(c.script, "#!/usr/bin/env python3") {
				if _, err := exec.LookPath("python3"); err != nil {
					testkit.Missing(t, err)
				}
			}
			st := startReplica(t, o, New).waitEnd(testTimeout) // some engines would stay for ten minutes
			if st.State != functions.Failed || !strings.HasPrefix(st.Error, c.why) || !strings.Contains(st.Error, c.more) {
				t.Errorf("%s %s\nwant %s … %s", st.State, st.Error, c.why, c.more)
			}
		})
	}
}

// elfProgram is the head of a program for a processor, EM_NONE is this machine's, that needs a loader.
func elfProgram(machine elf.Machine, loader string) string {
	if machine == elf.EM_NONE {
		machine = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	}
	var b bytes.Buffer
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	part := elf.Prog64{Type: uint32(elf.PT_INTERP), Off: 120, Filesz: uint64(len(loader) + 1), Memsz: uint64(len(loader) + 1)}
	if binary.Write(&b, binary.LittleEndian, h) != nil || binary.Write(&b, binary.LittleEndian, part) != nil {
		panic("a buffer takes every write")
	}
	return b.String() + loader + "\x00"
}

// A traceback of many processes is longer than what comes with an exit: the
// first cause is looked for in all that this start wrote, and in nothing else.
func TestFirstCauseOfALongLog(t *testing.T) {
	t.Parallel()
	b := newTestSupervisor(t)
	o := b.recorded(t, "long", `#!/bin/sh
echo 'ValueError: the root of it'
i=0; while [ $i -lt 400 ]; do echo "(Worker_TP$i pid=$i) ERROR 11-21 17:37:57 [core.py:1510]   File \"/opt/vllm/lib/python3.11/site-packages/vllm/v1/executor.py\", line $i, in run"; i=$((i+1)); done
echo 'RuntimeError: Engine core initialization failed. See root cause above.'
exit 1
`)
	for range 2 { // the log is that of the id: the second time it is there already
		st := startReplica(t, o, New).waitEnd(testTimeout)
		if want := "vllm ended while loading: ValueError: the root of it"; st.Error != want {
			t.Errorf("%s\nwant %s", st.Error, want)
		}
	}
}

// The log of a start is read while it is written: phases and parts are known
// before the engine answers.
func TestPhasesFromTheLog(t *testing.T) {
	t.Parallel()
	b := newTestSupervisor(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log, err := filepath.Abs("../engine/testdata/starts/vllm-start-eager.log")
	if err != nil {
		t.Fatal(err)
	}
	// serve PATH --served-model-name NAME --host H --port N: the lines up to where
	// half of the weights are here, and the rest once it is let on.
	on := filepath.Join(b.dir, "on")
	o := b.recorded(t, "log", fmt.Sprintf("#!/bin/sh\nhead -n 45 %[1]s; printf 'Loading safetensors checkpoint shards:  50%%%% Completed | "+
		"1/2\\r'; while [ ! -e %[3]s ]; do sleep 0.05; done; tail -n +46 %[1]s\nexport GORACE=atexit_sleep_ms=0\nexec %[2]s test-engine "+
		"\"$8\" \"$4\" slow=100ms\n", log, exe, on))
	began := time.Now()
	l := startReplica(t, o, New)
	testkit.Eventually(t, "it loads weights", func() bool {
		st := l.Status()
		return st.State == functions.Loading && len(st.Phases) == 2 && st.Phases[1].Phase == functions.PhaseSpawn &&
			len(st.Phases[1].Parts) == 2 && st.Percent == 50
	})
	loads := time.Now()
	if b, err := os.ReadFile(l.LogPath()); err != nil || bytes.Contains(b, []byte("Loading weights took")) {
		t.Errorf("the weights are loaded already: %v", err)
	}
	loaded := time.Since(loads)
	if err := os.WriteFile(on, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	st := l.wait(functions.Ready, testTimeout)
	var got []string
	for _, p := range st.Phases {
		var parts []string
		var sum float64
		for _, q := range p.Parts {
			parts = append(parts, q.Name)
			sum += q.Duration
		}
		if d := p.Duration - sum; len(parts) > 0 && (d > 1e-6 || d < -1e-6) {
			t.Errorf("%s takes %f, its parts %f", p.Phase, p.Duration, sum)
		}
		got = append(got, string(p.Phase)+"("+strings.Join(parts, " ")+")")
	}
	if want := "stage() spawn(imports engine) load(weights) warmup(warm-up app token)"; strings.Join(got, " ") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, " "), want)
	}
	if load, all := st.Phases[2].Duration, time.Since(began); load < loaded.Seconds() || load > all.Seconds() {
		t.Errorf("weights took %f s, which were more than %v and less than %v", load, loaded, all)
	}
	l.Unload(0, "done")
	l.waitEnd(testTimeout)
}
