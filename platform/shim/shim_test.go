package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/jsonsocket"
	"github.com/thaw-dev/thaw/runtime/replica"
	"github.com/thaw-dev/thaw/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeLoader is the loader's end: each dial is one connection of a script.
type fakeLoader struct {
	listening atomic.Bool
	mu        sync.Mutex
	open      []net.Conn
	received  []controlstream.FromPod
	at        []time.Duration // when, since the beginning
	from      time.Time
}

func (f *fakeLoader) dial(context.Context) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.listening.Load() {
		return nil, errors.New("no such file")
	}
	shimEnd, end := net.Pipe()
	f.open = append(f.open, end)
	go f.listen(end)
	return shimEnd, nil
}

func (f *fakeLoader) listen(c net.Conn) {
	in := jsonsocket.NewConn(c, controlstream.MaxLine)
	for {
		var m controlstream.FromPod
		if in.Receive(&m) != nil {
			return
		}
		f.mu.Lock()
		f.received, f.at = append(f.received, m), append(f.at, time.Since(f.from))
		f.mu.Unlock()
		if m.Hello != nil {
			f.send(controlstream.ToPod{Welcome: &controlstream.Welcome{Node: "n", UID: "u", Store: "/node/thaw"}})
		}
	}
}

func (f *fakeLoader) send(m controlstream.ToPod) {
	f.mu.Lock()
	c := f.open[len(f.open)-1]
	f.mu.Unlock()
	jsonsocket.NewConn(c, controlstream.MaxLine).Send(m)
}

func (f *fakeLoader) closeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.open {
		c.Close()
	}
	f.open = nil
}

// takeReceived is all that was said since the last call, as words.
func (f *fakeLoader) takeReceived() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var w []string
	for i, m := range f.received {
		at := f.at[i].Round(10 * time.Millisecond)
		switch {
		case m.Hello != nil:
			w = append(w, fmt.Sprintf("%v hello", at))
		case m.Stage != nil:
			w = append(w, fmt.Sprintf("%v stage %d %s %s", at, m.Stage.ID, m.Stage.Source, m.Stage.Digest))
		case m.Verify != nil:
			w = append(w, fmt.Sprintf("%v verify %d %s", at, m.Verify.ID, m.Verify.Digest))
		case m.Status != nil:
			w = append(w, fmt.Sprintf("%v %s", at, m.Status.State))
		}
	}
	f.received, f.at = nil, nil
	return strings.Join(w, "; ")
}

// withLoader a shim's end and a loader's, in a bubble.
func withLoader(t *testing.T, listening bool, do func(t *testing.T, l *loaderClient, f *fakeLoader, log *bytes.Buffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log := new(bytes.Buffer)
		f := &fakeLoader{from: time.Now()}
		f.listening.Store(listening)
		l := newLoaderClient(Options{Sockets: "/pod/thaw/sockets", LoaderTimeout: time.Minute, Log: slog.New(slog.NewTextHandler(log, nil)),
			Port: 8080, IP: "10.0.0.7"}, func(controlstream.Drain) {})
		l.dial = f.dial
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); l.Run(ctx) }()
		synctest.Wait()
		do(t, l, f, log)
		cancel()
		f.closeAll()
		<-done
		synctest.Wait()
	})
}

// staging is a Stage under way.
func staging(l *loaderClient, ctx context.Context, source string) chan error {
	out := make(chan error, 1)
	go func() {
		c, err := l.Stage(ctx, replica.StageRequest{Source: source}, func(_, _ functions.Bytes) {})
		if err == nil {
			err = fmt.Errorf("has %s %s", c.Path, c.Digest)
		}
		out <- err
	}()
	synctest.Wait()
	return out
}

func TestReconnectResendsState(t *testing.T) {
	withLoader(t, true, func(t *testing.T, l *loaderClient, f *fakeLoader, log *bytes.Buffer) {
		got := staging(l, t.Context(), "az://a/b")
		l.SendStatus(functions.ReplicaStatus{State: functions.Downloading})
		synctest.Wait()
		f.send(controlstream.ToPod{Staged: &controlstream.Staged{ID: 1, Path: "/node/thaw/c/1", Digest: "sha256:1", Bytes: 5}})
		if err := <-got; err.Error() != "has /pod/thaw/c/1 sha256:1" {
			t.Error(err)
		}
		l.SendStatus(functions.ReplicaStatus{State: functions.Ready})
		time.Sleep(5 * time.Second)
		if h := f.takeReceived(); h != "0s hello; 0s stage 1 az://a/b ; 0s DOWNLOADING; 0s READY; 2s READY; 4s READY" {
			t.Error(h)
		}
		// It goes, and comes again after a while. What is held is asked for as it is.
		f.listening.Store(false)
		f.closeAll()
		time.Sleep(10 * time.Second)
		f.listening.Store(true)
		time.Sleep(3 * time.Second)
		if h := f.takeReceived(); !strings.HasSuffix(h, " hello; 16.15s stage 1 az://a/b sha256:1; 16.15s READY") {
			t.Error(h)
		}
		if n := strings.Count(log.String(), "does not answer"); n != 1 {
			t.Errorf("its absence is told %d times:\n%s", n, log)
		}
		// An answer is taken for what it is.
		f.send(controlstream.ToPod{Staged: &controlstream.Staged{ID: 1, Path: "/node/thaw/c/2", Digest: "sha256:2"}})
		f.send(controlstream.ToPod{Failed: &controlstream.Failed{ID: 1, Kind: "x", Message: "gone"}})
		f.send(controlstream.ToPod{Failed: &controlstream.Failed{ID: 7, Kind: "x", Message: "gone"}})
		synctest.Wait()
		if s := log.String(); !strings.Contains(s, "other weights than those in use") ||
			!strings.Contains(s, "does not hold the weights in use") {
			t.Error(s)
		}
	})
}

// TestFailureIsReported: a shim may wait to be told to end only if the loader knows that
// its replica has failed.
func TestFailureIsReported(t *testing.T) {
	for _, listening := range []bool{true, false} {
		withLoader(t, listening, func(t *testing.T, l *loaderClient, f *fakeLoader, _ *bytes.Buffer) {
			l.SendStatus(functions.ReplicaStatus{State: functions.Failed, Error: "out of memory"})
			l.FlushStatus(t.Context())
			if l.allSent() != listening {
				t.Errorf("with a loader %v: told %v", listening, l.allSent())
			}
			f.listening.Store(false)
			f.closeAll()
			synctest.Wait()
			if l.allSent() {
				t.Error("told to a loader that has hung up")
			}
		})
	}
}

func TestWaitForLoader(t *testing.T) {
	withLoader(t, false, func(t *testing.T, l *loaderClient, f *fakeLoader, log *bytes.Buffer) {
		began := time.Now()
		err := <-staging(l, t.Context(), "az://a/b")
		if d := time.Since(began); !errors.Is(err, ErrNoLoader) || !strings.Contains(err.Error(), "1m0s") || d < time.Minute ||
			d > time.Minute+dialMax {
			t.Errorf("after %v: %v", d, err)
		}
		if err := l.disconnectError(); err != ErrNoLoader {
			t.Error(err)
		}
		if s := log.String(); !strings.Contains(s, `"giving up after"=1m0s`) || strings.Count(s, "level=ERROR") != 1 {
			t.Errorf("said:\n%s", s)
		}
	})
	// It comes within the bound.
	withLoader(t, false, func(t *testing.T, l *loaderClient, f *fakeLoader, log *bytes.Buffer) {
		got := staging(l, t.Context(), "az://a/b")
		time.Sleep(50 * time.Second)
		f.listening.Store(true)
		time.Sleep(3 * time.Second)
		f.send(controlstream.ToPod{Failed: &controlstream.Failed{ID: 1, Kind: controlstream.KindEnding, Message: "I end"}}) // no answer
		f.closeAll()
		time.Sleep(time.Second)
		f.send(controlstream.ToPod{Staged: &controlstream.Staged{ID: 1, Path: "/node/thaw/c/1", Digest: "sha256:1"}})
		if err := <-got; err.Error() != "has /pod/thaw/c/1 sha256:1" {
			t.Error(err)
		}
		if l.disconnectError() != nil {
			t.Error("it came")
		}
	})
}

// TestVerify: the loader is asked to read a held checkpoint again, once per connection and
// only after it has answered with the checkpoint.
func TestVerify(t *testing.T) {
	staged := controlstream.ToPod{Staged: &controlstream.Staged{ID: 1, Path: "/node/thaw/c/1", Digest: "sha256:1"}}
	// begin stages a checkpoint and starts its verification.
	begin := func(t *testing.T, l *loaderClient, f *fakeLoader, ctx context.Context) chan error {
		out := make(chan error, 1)
		go func() {
			c, err := l.Stage(ctx, replica.StageRequest{Source: "az://a/b"}, func(_, _ functions.Bytes) {})
			if err == nil {
				err = c.Verify(ctx)
				c.Release()
			}
			out <- err
		}()
		synctest.Wait()
		f.send(staged)
		synctest.Wait()
		return out
	}
	for name, c := range map[string]struct {
		answer  controlstream.ToPod
		damaged bool
		want    string // "": no error
	}{
		"damaged":    {controlstream.ToPod{Verified: &controlstream.Verified{ID: 1, Damaged: true, Error: "model.safetensors"}}, true, "model.safetensors"},
		"good":       {controlstream.ToPod{Verified: &controlstream.Verified{ID: 1}}, false, ""},
		"unreadable": {controlstream.ToPod{Verified: &controlstream.Verified{ID: 1, Error: "too many files"}}, false, "too many files"},
		"not held":   {controlstream.ToPod{Failed: &controlstream.Failed{ID: 1, Kind: "x", Message: "gone"}}, false, "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			withLoader(t, true, func(t *testing.T, l *loaderClient, f *fakeLoader, _ *bytes.Buffer) {
				got := begin(t, l, f, t.Context())
				f.send(controlstream.ToPod{Verified: &controlstream.Verified{ID: 2, Damaged: true}}) // of none
				f.send(c.answer)
				f.send(c.answer) // once more: ignored
				if err := <-got; errors.Is(err, replica.ErrDamaged) != c.damaged || (err == nil) != (c.want == "") ||
					err != nil && !strings.Contains(err.Error(), c.want) {
					t.Error(err)
				}
				if h := f.takeReceived(); h != "0s hello; 0s stage 1 az://a/b ; 0s verify 1 sha256:1" {
					t.Error(h)
				}
			})
		})
	}
	t.Run("the loader is replaced", func(t *testing.T) {
		withLoader(t, true, func(t *testing.T, l *loaderClient, f *fakeLoader, _ *bytes.Buffer) {
			got := begin(t, l, f, t.Context())
			f.send(controlstream.ToPod{Failed: &controlstream.Failed{ID: 1, Kind: controlstream.KindEnding, Message: "I end"}})
			f.takeReceived()
			f.closeAll()
			time.Sleep(time.Second)
			if h := f.takeReceived(); h != "50ms hello; 50ms stage 1 az://a/b sha256:1" {
				t.Error(h)
			}
			f.send(staged)
			time.Sleep(time.Second)
			if h := f.takeReceived(); h != "1s verify 1 sha256:1" {
				t.Error(h)
			}
			f.send(controlstream.ToPod{Verified: &controlstream.Verified{ID: 1, Damaged: true}})
			if err := <-got; !errors.Is(err, replica.ErrDamaged) {
				t.Error(err)
			}
		})
	})
	t.Run("no loader any more", func(t *testing.T) {
		withLoader(t, true, func(t *testing.T, l *loaderClient, f *fakeLoader, _ *bytes.Buffer) {
			got := begin(t, l, f, t.Context())
			f.listening.Store(false)
			f.closeAll()
			began := time.Now()
			if err := <-got; err == nil || errors.Is(err, replica.ErrDamaged) || time.Since(began) < time.Minute ||
				time.Since(began) > time.Minute+dialMax {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
			if l.disconnectError() != nil {
				t.Error("the replica failed for its engine, not for want of a loader")
			}
		})
	})
	t.Run("called off", func(t *testing.T) {
		withLoader(t, true, func(t *testing.T, l *loaderClient, f *fakeLoader, _ *bytes.Buffer) {
			ctx, cancel := context.WithCancelCause(t.Context())
			got := begin(t, l, f, ctx)
			cancel(errors.New("unload"))
			if err := <-got; err == nil || err.Error() != "unload" {
				t.Error(err)
			}
			f.send(controlstream.ToPod{Verified: &controlstream.Verified{ID: 1, Damaged: true}})
			synctest.Wait()
		})
	})
}

func TestLoaderAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		reply controlstream.ToPod
		want  string
	}{
		"a failure":        {controlstream.ToPod{Failed: &controlstream.Failed{ID: 1, Kind: "k", Message: "no such thing", Fix: "look"}}, "no such thing; look"},
		"another's folder": {controlstream.ToPod{Staged: &controlstream.Staged{ID: 1, Path: "/etc/thaw", Digest: "sha256:1"}}, "not in its store"},
		"above the folder": {controlstream.ToPod{Staged: &controlstream.Staged{ID: 1, Path: "/node/thaw/../x", Digest: "sha256:1"}}, "not in its store"},
		"no folder":        {controlstream.ToPod{Staged: &controlstream.Staged{ID: 1, Path: "c", Digest: "sha256:1"}}, "not in its store"},
		"the folder":       {controlstream.ToPod{Staged: &controlstream.Staged{ID: 1, Path: "/node/thaw", Digest: "sha256:1"}}, "has /pod/thaw sha256:1"},
	} {
		t.Run(name, func(t *testing.T) {
			withLoader(t, true, func(t *testing.T, l *loaderClient, f *fakeLoader, log *bytes.Buffer) {
				got := staging(l, t.Context(), "az://a/b")
				f.send(controlstream.ToPod{Staging: &controlstream.Staging{ID: 1, Done: 1, Total: 2}})
				f.send(controlstream.ToPod{Staging: &controlstream.Staging{ID: 9, Done: 1, Total: 2}})
				f.send(c.reply)
				if err := <-got; !strings.Contains(err.Error(), c.want) {
					t.Error(err)
				}
			})
		})
	}
	withLoader(t, true, func(t *testing.T, l *loaderClient, f *fakeLoader, log *bytes.Buffer) {
		if err := <-staging(l, t.Context(), ""); err == nil || !strings.Contains(err.Error(), "source is missing") {
			t.Error(err)
		}
		// Called off: the request is not sent again.
		ctx, cancel := context.WithCancelCause(t.Context())
		got := staging(l, ctx, "az://a/b")
		cancel(replica.ErrStartCancelled)
		if err := <-got; !errors.Is(err, replica.ErrStartCancelled) {
			t.Error(err)
		}
		f.takeReceived()
		f.closeAll()
		time.Sleep(time.Second)
		if h := f.takeReceived(); strings.Contains(h, "stage") || !strings.Contains(h, "hello") {
			t.Error(h)
		}
	})
}

// A loader that is no loader is as good as none, and is dialled with patience.
func TestBrokenLoader(t *testing.T) {
	for name, reply := range map[string]string{
		"silence":      "",
		"no JSON":      "hello\n",
		"another line": `{"stop":{"seconds":1}}` + "\n",
		"a refusal":    `{"failed":{"id":0,"kind":"refused_by_loader","message":"who dials is no pod"}}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dials := 0
				var ends []net.Conn
				log := new(bytes.Buffer)
				l := newLoaderClient(Options{LoaderTimeout: time.Minute, Log: slog.New(slog.NewTextHandler(log, nil))}, func(controlstream.Drain) {})
				l.dial = func(context.Context) (net.Conn, error) {
					dials++
					shimEnd, end := net.Pipe()
					ends = append(ends, end)
					go func() {
						jsonsocket.NewConn(end, controlstream.MaxLine).Receive(new(controlstream.FromPod))
						io.WriteString(end, reply)
					}()
					return shimEnd, nil
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); l.Run(ctx) }()
				err := <-staging(l, ctx, "az://a/b")
				if !errors.Is(err, ErrNoLoader) || name == "a refusal" && !strings.Contains(err.Error(), "who dials is no pod") {
					t.Error(err)
				}
				if maxDials := int(time.Minute/dialMax) + 10; dials > maxDials {
					t.Errorf("dialled %d times in a minute", dials)
				}
				cancel()
				<-done
				for _, c := range ends {
					c.Close()
				}
			})
		})
	}
}

// FuzzReceive: whatever a loader says, weights come from its folder alone.
func FuzzReceive(f *testing.F) {
	for _, s := range []string{
		`{"staged":{"id":1,"path":"/node/thaw/c/1","digest":"sha256:1","bytes":5}}`,
		`{"staged":{"id":1,"path":"/node/thaw/../../etc","digest":"sha256:1"}}`,
		`{"staged":{"id":1,"path":"/node/thaw/c/../../x"}}`,
		`{"failed":{"id":1,"kind":"loader_ending","message":"m"}}`,
		`{"staging":{"id":1,"done":-1,"total":-2}}`,
		`{"stop":{"seconds":-1e308,"reason":""}}`,
	} {
		f.Add([]byte(s + "\n" + s + "\n"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l := newLoaderClient(Options{Sockets: "/pod/thaw/sockets", LoaderTimeout: time.Minute, Log: slog.New(slog.DiscardHandler)},
			func(controlstream.Drain) {})
		a := &stagingRequest{Stage: controlstream.Stage{ID: 1, Source: "az://a/b"}, answer: make(chan stagingResult, 1),
			progress: func(_, _ functions.Bytes) {}}
		l.requests[1], l.last = a, 1
		for line := range bytes.Lines(b) {
			var m controlstream.ToPod
			if json.Unmarshal(line, &m) != nil {
				break
			}
			l.onLine(m, "/node/thaw", nil)
		}
		select {
		case x := <-a.answer:
			if x.err == nil && x.Path != "/pod/thaw" && !strings.HasPrefix(x.Path, "/pod/thaw/") {
				t.Errorf("weights in %q", x.Path)
			}
		default:
		}
	})
}

func TestInherited(t *testing.T) {
	got := InheritedVariables([]string{"PORT=8080", "K_SERVICE=a", "PATH=/bin", "PORTAL=x", "HOME=/tmp"})
	if !slices.Equal(got, []string{"PATH=/bin", "PORTAL=x", "HOME=/tmp"}) {
		t.Error(got)
	}
}

// The log is copied whole though it is turned over under its reader.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	ended, read := make(chan struct{}), make(chan struct{})
	r, w := io.Pipe()
	go func() {
		defer close(read)
		defer w.Close()
		copyLog(ended, func() string { return path }, w)
	}()
	buf := make([]byte, 5)
	for i, line := range []string{"one..", "two..", "three"} {
		if i > 0 {
			os.Rename(path, path+".1")
		}
		if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			close(ended)
		}
		if _, err := io.ReadFull(r, buf); err != nil || string(buf) != line {
			t.Fatalf("%q, %v", buf, err)
		}
	}
	io.Copy(io.Discard, r)
	<-read
	// Nothing was ever written.
	copyLog(ended, func() string { return "" }, io.Discard)
}

func TestAddress(t *testing.T) {
	ip, err := Address()
	if err != nil {
		testkit.Missing(t, err)
	}
	if a := net.ParseIP(ip); a == nil || a.IsLoopback() {
		t.Error(ip)
	}
}

func TestSeed(t *testing.T) {
	root := t.TempDir()
	image, dir := filepath.Join(root, "image"), filepath.Join(root, "tmp")
	for name, text := range map[string]string{"modelinfos/a.json": "A", "modelinfos/large.json": strings.Repeat("x", seedBytes+1), "torch_compile_cache/k.so": "code"} {
		os.MkdirAll(filepath.Dir(filepath.Join(image, name)), 0o755)
		if err := os.WriteFile(filepath.Join(image, name), []byte(text), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	os.Symlink("/etc/passwd", filepath.Join(image, "modelinfos", "link.json"))
	for range 2 { // again, as after a container that failed
		got, err := seedCaches(dir, functions.EngineVLLM, []string{"VLLM_CACHE_ROOT=" + image})
		if err != nil || got != filepath.Join(dir, "vllm") {
			t.Fatal(got, err)
		}
		var have []string
		for _, e := range []string{"modelinfos/*", "*"} {
			m, _ := filepath.Glob(filepath.Join(got, e))
			have = append(have, m...)
		}
		if !slices.Equal(have, []string{filepath.Join(got, "modelinfos/a.json"), filepath.Join(got, "modelinfos")}) {
			t.Error(have)
		}
	}
	// Nothing to take over, and nothing that takes any.
	if got, err := seedCaches(dir, functions.EngineVLLM, []string{"HOME=" + root}); err != nil || got == "" {
		t.Error(got, err)
	}
	if got, err := seedCaches(dir, functions.EngineEmber, nil); err != nil || got != "" {
		t.Error(got, err)
	}
}

// TestVulnerable: a pod refuses an engine with a known hole, and starts it where that is
// allowed.
func TestVulnerable(t *testing.T) {
	root := t.TempDir()
	program := filepath.Join(root, "bin", "vllm")
	for _, dir := range []string{filepath.Dir(program), filepath.Join(root, "lib", "python3.12", "site-packages", "vllm-0.29.1.dist-info")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{program: "#!" + root + "/bin/python\n", filepath.Join(root, "bin", "python"): ""} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m := functions.NewModel()
	m.Metadata.Name, m.Spec.Engine = "m", functions.EngineVLLM
	for _, refuse := range []bool{true, false} {
		s := New(Options{Model: m, Dir: t.TempDir(), NoImports: true, RefuseVulnerable: refuse, Environ: []string{"THAW_ENGINE_VLLM=" + program, "PATH=/nonexistent"}})
		o, _ := s.options(nil)
		_, err := o.Programs.Prepare(engine.Request{Spec: m.Spec, Name: "m", Path: root, Port: 1})
		if refused := err != nil && strings.Contains(err.Error(), "vllm 0.29.1 has a known hole"); refused != refuse || !refuse && err != nil {
			t.Errorf("refuse %v: %v", refuse, err)
		}
		s.engines.Close()
	}
}
