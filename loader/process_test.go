package loader_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/azuretest"
)

// The test binary is also the other processes of these tests.
const childEnv = "THAW_LOADER_TEST_CHILD"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		if err := child(mode); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testkit.ShortenExits()
	goleak.VerifyTestMain(m)
}

// child stages what the environment says. It kills itself at the step number
// KILL, and with HOLD keeps the lease until its standard input ends.
func child(mode string) error {
	kill, _ := strconv.Atoi(os.Getenv("KILL"))
	budget, _ := strconv.ParseInt(os.Getenv("BUDGET"), 10, 64)
	var mu sync.Mutex
	steps := 0
	st, err := store.Open(store.Options{Dir: os.Getenv("STORE"), Budget: budget, DirectFrom: 1, Step: func(string) error {
		mu.Lock()
		defer mu.Unlock()
		if steps++; steps == kill {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}})
	if err != nil {
		return err
	}
	az := azure.New(azure.Options{Getenv: os.Getenv})
	defer az.Close()
	l := loader.New(loader.Options{Store: st, Block: 4 * block, Parallel: 4,
		Sources: map[string]loader.Source{"file": copied{checksummed{dir.Source{}}}, "az": az}})
	defer l.Close()
	s, err := l.Stage(context.Background(), os.Getenv("SOURCE"), loader.StageOptions{})
	if err != nil {
		return err
	}
	defer s.Release()
	c, err := s.Wait(context.Background())
	if err != nil {
		return err
	}
	defer c.Lease.Release()
	fmt.Println(c.Path)
	if mode == "hold" {
		_, err = io.Copy(io.Discard, os.Stdin)
	}
	return err
}

func command(t *testing.T, mode string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(append(os.Environ(), childEnv+"="+mode), env...)
	c.Stderr = os.Stderr
	return c
}

// checksummed is a folder whose plan says the sha256 of some files beforehand, as a
// hub's does: those are published by themselves.
type checksummed struct{ dir.Source }

func (c checksummed) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	p, err := c.Source.Plan(ctx, location, also)
	for i, f := range p.Files {
		if f.Name == "model.safetensors" && err == nil {
			b, rerr := os.ReadFile(f.Ref)
			sum := sha256.Sum256(b)
			p.Files[i].SHA256, err = hex.EncodeToString(sum[:]), rerr
		}
	}
	return p, err
}

// A process is killed at every step that changes the disk, in turn. Whatever
// the step, no half of a checkpoint is listed, and the next process finishes.
func TestKilledAtEveryStep(t *testing.T) {
	folder, other := model(t), t.TempDir()
	write(t, other, "model.safetensors", weights(90_000, 77))
	const atOnce = 4
	var last atomic.Int64
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for killed := true; killed; {
				step := int(last.Add(1))
				killed = false // also if the subtest ends early
				t.Run(strconv.Itoa(step), func(t *testing.T) { killed = killAtStep(t, step, folder, other) })
			}
		})
	}
	workers.Wait()
	steps := last.Load() - atOnce // each worker ended with a step that does not exist
	t.Logf("%d steps", steps)
	if steps < 19 {
		t.Error("too few steps")
	}
}

// killAtStep kills a process that stages folder into a store that has other, which must make
// room, and reports whether the process got to that step.
func killAtStep(t *testing.T, step int, folder, other string) (killed bool) {
	const budget = 150_000 // one of the two
	data := t.TempDir()
	st := openStore(t, store.Options{Dir: data, Budget: budget})
	l := loader.New(loader.Options{Store: st, Block: 4 * block, Sources: map[string]loader.Source{"file": copied{dir.Source{}}}})
	old := stageFolder(t, l, other)
	old.Lease.Release()

	c := command(t, "stage", "STORE="+data, "SOURCE="+folder, "BUDGET="+strconv.Itoa(budget), "KILL="+strconv.Itoa(step))
	err := c.Run()
	if err != nil && (c.ProcessState == nil || c.ProcessState.ExitCode() != -1) {
		t.Fatal(err)
	}
	again := openStore(t, store.Options{Dir: data, Budget: budget})
	list, lerr := again.List()
	if lerr != nil {
		t.Fatal(lerr)
	}
	for _, e := range list {
		if verr := again.Verify(t.Context(), e.Digest); verr != nil {
			t.Errorf("listed and not whole: %v", verr)
		}
	}
	l2 := loader.New(loader.Options{Store: again, Block: 4 * block, Sources: map[string]loader.Source{"file": copied{dir.Source{}}}})
	got := stageFolder(t, l2, folder)
	for _, n := range []string{"config.json", "model.safetensors"} {
		want, _ := os.ReadFile(filepath.Join(folder, n))
		if b, rerr := os.ReadFile(filepath.Join(got.Path, n)); rerr != nil || string(b) != string(want) {
			t.Errorf("%s: %d bytes, %v", n, len(b), rerr)
		}
	}
	got.Lease.Release()
	l.Close()
	l2.Close()
	for _, left := range []string{"parts", "trash", "coming"} {
		if names, _ := os.ReadDir(filepath.Join(data, left)); len(names) != 0 {
			t.Errorf("%s holds %v", left, names)
		}
	}
	if used, _, _ := again.Usage(); used > budget {
		t.Errorf("%d bytes used of %d", used, budget)
	}
	return err != nil
}

func stageFolder(t *testing.T, l *loader.Loader, folder string) *loader.Checkpoint {
	t.Helper()
	s, err := l.Stage(t.Context(), folder, loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	c, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Three processes ask for one model at once: one stages, the others find it.
func TestProcessesShareDownload(t *testing.T) {
	r := newRemote(t, store.Options{})
	gate := make(chan struct{})
	began := make(chan struct{})
	r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
		if n == 1 {
			close(began)
			holdRequest(req, gate)
		}
		return false
	})
	data := t.TempDir()
	env := []string{"STORE=" + data, "SOURCE=" + azuretest.Location("m"), "AZURE_STORAGE_CONNECTION_STRING=" + r.srv.Getenv("AZURE_STORAGE_CONNECTION_STRING")}
	first := command(t, "stage", env...)
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	<-began
	second := command(t, "stage", env...)
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	// And this process is the third, which can be watched.
	l := r.loader(t, openStore(t, store.Options{Dir: data}))
	s, err := l.Stage(t.Context(), azuretest.Location("m"), loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	events, stop := s.Events()
	for p := range events {
		if p.State == loader.Waiting {
			break
		}
	}
	stop()
	close(gate)
	c, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Lease.Release()
	r.check(t, c)
	if err := errors.Join(first.Wait(), second.Wait()); err != nil {
		t.Error(err)
	}
	// Blocks of these children are four times as long: 3 and 1 in all.
	if n := len(r.srv.Gets()); n != 4 {
		t.Errorf("%d ranges for one model: %v", n, r.srv.Gets())
	}
}

func TestCrashReleasesLease(t *testing.T) {
	folder, data := model(t), t.TempDir()
	c := command(t, "hold", "STORE="+data, "SOURCE="+folder)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(strings.TrimSpace(line)); err != nil {
		t.Fatal(err)
	}
	st := openStore(t, store.Options{Dir: data})
	list, err := st.List()
	if err != nil || len(list) != 1 || !list[0].Pinned {
		t.Fatalf("list %+v, %v", list, err)
	}
	if err := st.Remove(list[0].Digest); source.KindOf(err) != source.Refused {
		t.Errorf("removed under its user: %v", err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if err := st.Remove(list[0].Digest); err != nil {
		t.Errorf("not removed after its user died: %v", err)
	}
	if used, _, err := st.Usage(); used != 0 || err != nil {
		t.Errorf("%d bytes left, %v", used, err)
	}
}

// The process that stages is killed; the one that waited for it takes over.
func TestStagerKilledWaiterTakesOver(t *testing.T) {
	r := newRemote(t, store.Options{})
	began := make(chan struct{})
	r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
		if n == 1 {
			close(began)
			<-req.Context().Done()
			return true
		}
		return false
	})
	data := t.TempDir()
	first := command(t, "stage", "STORE="+data, "SOURCE="+azuretest.Location("m"),
		"AZURE_STORAGE_CONNECTION_STRING="+r.srv.Getenv("AZURE_STORAGE_CONNECTION_STRING"))
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	<-began
	l := r.loader(t, openStore(t, store.Options{Dir: data}))
	s, err := l.Stage(t.Context(), azuretest.Location("m"), loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	events, stop := s.Events()
	for p := range events {
		if p.State == loader.Waiting {
			break
		}
	}
	stop()
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	c, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Lease.Release()
	r.check(t, c)
}
