package sizer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// folderWorld is a Folder with a source in memory and the files that it completes.
type folderWorld struct {
	t      *testing.T
	folder *Folder
	sizer  Sizer

	mu      sync.Mutex
	nodes   []functions.Node
	reports []string
	reread  []string
}

func newFolderWorld(t *testing.T, path string, m *sourcetest.Memory) *folderWorld {
	f, err := OpenFolder(path)
	if err != nil {
		t.Fatal(err)
	}
	w := &folderWorld{t: t, folder: f, nodes: []functions.Node{node("a", 80*gib)}}
	silent := &sourcetest.Memory{Before: func(ctx context.Context, _ string, _, _ int64) error {
		<-ctx.Done()
		return &source.Error{Kind: source.Unavailable, Detail: "no answer", Err: context.Cause(ctx)}
	}}
	w.sizer = Sizer{
		Sources: func() (map[string]loader.Source, func()) {
			return map[string]loader.Source{"s3": m, "gs": silent}, func() {}
		},
		Nodes: func() []functions.Node { w.mu.Lock(); defer w.mu.Unlock(); return w.nodes },
	}
	return w
}

// run runs the folder until the bubble ends.
func (w *folderWorld) run() (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error)
	go func() {
		done <- w.folder.Run(ctx, w.sizer, FolderEvents{
			Report: func(name functions.Name, text string, known bool) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.reports = append(w.reports, name.Name+": "+text)
			},
			Reread: func(name functions.Name) { w.mu.Lock(); defer w.mu.Unlock(); w.reread = append(w.reread, name.Name) },
		})
	}()
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			w.t.Error(err)
		}
	}
}

// read is what a catalog does with a file.
func (w *folderWorld) read(name, source string, change func(*functions.ModelSpec)) functions.Resources {
	m := functions.NewModel()
	m.Metadata.Name, m.Spec.Engine, m.Spec.Source = name, functions.EngineVLLM, source
	if change != nil {
		change(&m.Spec)
	}
	w.folder.Complete(m)
	return m.Spec.Resources
}

// news returns what was reported and read again since the last call.
func (w *folderWorld) news() (reports, reread []string) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	reports, reread = w.reports, w.reread
	w.reports, w.reread = nil, nil
	slices.Sort(reports)
	return reports, reread
}

func (w *folderWorld) want(reread string, texts ...string) {
	w.t.Helper()
	reports, again := w.news()
	if strings.Join(again, " ") != reread || len(reports) != len(texts) {
		w.t.Errorf("read again: %q, want %q; reports %q", again, reread, reports)
		return
	}
	for i, text := range texts {
		if !strings.Contains(reports[i], text) {
			w.t.Errorf("%q does not contain %q", reports[i], text)
		}
	}
}

func publicMemory(t *testing.T) *sourcetest.Memory {
	t.Helper()
	weights, err := os.ReadFile(filepath.Join("..", "..", "functions", "shipped", "tiny", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	m := new(sourcetest.Memory)
	m.Put("s3://models/m", "config.json", []byte(mistral))
	m.Put("s3://models/m", "model.safetensors", weights)
	return m
}

// A file's resources are worked out beside a source that does not answer, once, and are there
// after a restart, also while what the file says has changed.
func TestFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, m := filepath.Join(t.TempDir(), "resources.json"), publicMemory(t)
		w := newFolderWorld(t, path, m)
		if got := w.read("m", "s3://models/m", nil); got != (functions.Resources{}) {
			t.Errorf("%+v before anything is known", got)
		}
		w.read("silent", "gs://models/m", nil)
		own := functions.Resources{GPUs: 1, GPUMemory: gib}
		if got := w.read("own", "s3://models/m", func(s *functions.ModelSpec) { s.Resources = own }); got != own {
			t.Errorf("a file's own became %+v", got)
		}
		if got := w.read("ember", "s3://models/m", func(s *functions.ModelSpec) { s.Engine = functions.EngineEmber }); got != (functions.Resources{}) {
			t.Errorf("%+v", got)
		}
		stop := w.run()
		w.want("m", "m: spec.resources is left out, and was worked out: {gpus: 1,")
		sized := w.read("m", "s3://models/m", nil)
		if sized.GPUs != 1 || sized.GPUMemory < 64*gib {
			t.Errorf("%+v", sized)
		}
		w.want("")
		time.Sleep(21 * time.Second)
		w.want("", "silent: spec.resources is left out, and nothing is reserved: it could not be worked out")
		time.Sleep(3 * time.Minute)
		w.want("") // tried again, and the same

		half := func(s *functions.ModelSpec) { s.Scale.Target = 4 }
		if got := w.read("m", "s3://models/m", half); got != sized {
			t.Errorf("until the new ones are known: %+v", got)
		}
		w.want("m", "for 4 x 32768 tokens")
		smaller := w.read("m", "s3://models/m", half)
		if smaller.GPUMemory >= sized.GPUMemory {
			t.Errorf("%+v, before %+v", smaller, sized)
		}
		w.folder.Complete(&functions.Model{Metadata: functions.Metadata{Name: "silent", Namespace: "default"}})
		stop()

		w = newFolderWorld(t, path, m)
		if got := w.read("m", "s3://models/m", half); got != smaller {
			t.Errorf("after a restart: %+v, want %+v", got, smaller)
		}
		stop = w.run()
		defer stop()
		w.want("")
	})
}

// Without a GPU nothing is known; when a node with one comes, it is.
func TestFolderWaitsForGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFolderWorld(t, filepath.Join(t.TempDir(), "resources.json"), publicMemory(t))
		w.nodes = nil
		w.read("m", "s3://models/m", nil)
		defer w.run()()
		w.want("", "m: spec.resources is left out, and nothing is reserved: no node has a GPU")
		w.mu.Lock()
		w.nodes = []functions.Node{node("a", 80*gib)}
		w.mu.Unlock()
		time.Sleep(retryPause + time.Second)
		w.want("m", "was worked out")
	})
}

func TestFolderFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resources.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFolder(path); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Error(err)
	}
}
