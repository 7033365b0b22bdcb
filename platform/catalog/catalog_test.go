package catalog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

func modelText(name string) string {
	return strings.Replace(tiny, "name: tiny", "name: "+name, 1)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func names(c *Catalog) string {
	var s []string
	for _, m := range c.Models() {
		s = append(s, m.FullName().Short())
	}
	return strings.Join(s, " ")
}

func openCatalog(t *testing.T) (c *Catalog, user, deployed string) {
	t.Helper()
	user, deployed = t.TempDir(), filepath.Join(t.TempDir(), "functions")
	write(t, filepath.Join(user, "a.yaml"), modelText("a"))
	c, err := Open(Options{Folder: user, Deployed: deployed})
	if err != nil {
		t.Fatal(err)
	}
	return c, user, deployed
}

func named(name string) functions.Name { return functions.Name{Team: "default", Name: name} }

func TestFolder(t *testing.T) {
	c, user, _ := openCatalog(t)
	write(t, filepath.Join(user, "b.YML"),
		modelText("b")+"---\n"+modelText("c")+"---\napiVersion: thaw.dev/v1\nkind: Team\nmetadata: {name: ml}\n")
	write(t, filepath.Join(user, ".hidden.yaml"), modelText("d"))
	write(t, filepath.Join(user, "e.yaml~"), modelText("e"))
	if err := os.MkdirAll(filepath.Join(user, "weights.yaml", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(user, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(user, "below", "f.yaml"), modelText("f"))
	c.Reload()
	if got := names(c); got != "a b c" {
		t.Errorf("models %q", got)
	}
	if got := c.Teams(); len(got) != 1 || got[0].Metadata.Name != "ml" {
		t.Errorf("teams %v", got)
	}
	if p := c.Problems(); len(p) != 0 {
		t.Error(p)
	}
	if m := c.Model(named("b")); m == nil || m.Dir != user || m.Origin != filepath.Join(user, "b.YML")+":1" {
		t.Errorf("got %+v", m)
	}
}

func TestBadEditKeepsOldDefinition(t *testing.T) {
	c, user, _ := openCatalog(t)
	path := filepath.Join(user, "a.yaml")
	before := c.Model(named("a"))
	write(t, path, modelText("a")+"  scale: {mx: 2}\n")
	c.Reload()
	if c.Model(named("a")) != before {
		t.Error("the old one is gone")
	}
	p := c.Problems()
	if len(p) != 1 || p[0].Line != 7 || p[0].File != path || p[0].Path != "spec.scale.mx" {
		t.Errorf("problems %v", p)
	}
	write(t, path, modelText("a")+"  scale: {max: 2}\n")
	c.Reload()
	if m := c.Model(named("a")); m.Spec.Scale.Max != 2 || len(c.Problems()) != 0 {
		t.Errorf("got %+v, %v", m, c.Problems())
	}
}

// Complete sees each model of the user's folder before others do, and no other; a broken edit
// keeps what it filled in, and a file is read again on demand.
func TestComplete(t *testing.T) {
	user, deployed := t.TempDir(), t.TempDir()
	var seen []string
	c, err := Open(Options{Folder: user, Deployed: deployed, Complete: func(m *functions.Model) {
		seen = append(seen, m.FullName().Name)
		m.Spec.Resources.GPUs = len(seen)
	}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(user, "a.yaml")
	write(t, path, modelText("a"))
	c.Reload()
	if _, err := c.Put(named("b"), []byte(strings.Replace(modelText("b"), "./", "/", 1))); err != nil {
		t.Fatal(err)
	}
	write(t, path, modelText("a")+"  scale: {mx: 2}\n")
	c.Reload()
	if got := c.Model(named("a")).Spec.Resources.GPUs; got != 1 || !slices.Equal(seen, []string{"a"}) {
		t.Errorf("%d, seen %q", got, seen)
	}
	write(t, path, modelText("a"))
	c.Reload()
	c.Reload()
	c.Reread(named("a"))
	c.Reread(named("none"))
	c.Reload()
	if got := c.Model(named("a")).Spec.Resources.GPUs; got != 3 || !slices.Equal(seen, []string{"a", "a", "a"}) {
		t.Errorf("%d, seen %q", got, seen)
	}
}

// A file that is replaced by one of the same size and time is read again: by a rename, as
// editors and rsync do, and in place.
func TestSameSizeAndTime(t *testing.T) {
	c, user, _ := openCatalog(t)
	path, at := filepath.Join(user, "a.yaml"), time.Unix(1_700_000_000, 0)
	set := func(text string, place func(text string)) {
		t.Helper()
		place(text)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		c.Reload()
	}
	inPlace := func(text string) { write(t, path, text) }
	renamed := func(text string) {
		write(t, path+".new", text)
		if err := os.Chtimes(path+".new", at, at); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	set(modelText("a")+"  scale: {max: 2}\n", inPlace)
	for i, place := range []func(string){renamed, inPlace, renamed} {
		want := 3 + i
		set(modelText("a")+fmt.Sprintf("  scale: {max: %d}\n", want), place)
		if m := c.Model(named("a")); m.Spec.Scale.Max != want {
			t.Errorf("replacement %d was not noticed: max is %d", i, m.Spec.Scale.Max)
		}
	}
}

func TestWeightsAndExclude(t *testing.T) {
	docs, err := Decode("f.yaml", []byte(modelText("a")+"  weights: \"*Q4*\"\n  exclude: [onnx, \"*.txt\"]\n"))
	if err != nil || docs[0].Model.Spec.Weights != "*Q4*" || !slices.Equal(docs[0].Model.Spec.Exclude, []string{"onnx", "*.txt"}) {
		t.Fatalf("%+v, %v", docs, err)
	}
	for text, want := range map[string]string{
		"weights: ../x":       "spec.weights",
		"weights: \"=x\"":     "spec.weights",
		"weights: [a]":        "spec.weights",
		"exclude: [\"!a\"]":   "spec.exclude[0]",
		"exclude: [/a]":       "spec.exclude[0]",
		"exclude: [\"**/x\"]": "spec.exclude[0]",
		"files: [\"!x\"]":     "spec.exclude leaves files out",
	} {
		if _, err := Decode("f.yaml", []byte(modelText("a")+"  "+text+"\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestBadFileAtStartKeepsOthers(t *testing.T) {
	user := t.TempDir()
	write(t, filepath.Join(user, "a.yaml"), modelText("a"))
	write(t, filepath.Join(user, "b.yaml"), "kind: Pod\n")
	c, err := Open(Options{Folder: user})
	if err != nil || names(c) != "a" || len(c.Problems()) != 1 {
		t.Fatal(err, names(c), c.Problems())
	}
	if _, err := Open(Options{Folder: filepath.Join(user, "none")}); err == nil {
		t.Error("a folder that is not there")
	}
}

func TestSameNameTwice(t *testing.T) {
	c, user, deployed := openCatalog(t)
	write(t, filepath.Join(user, "0.yaml"), "# first in order\n"+modelText("a"))
	c.Reload()
	if m := c.Model(named("a")); !strings.HasPrefix(m.Origin, filepath.Join(user, "a.yaml")) {
		t.Errorf("the newcomer took the name: %s", m.Origin)
	}
	p := c.Problems()
	if len(p) != 1 || !strings.Contains(p[0].Error(), "0.yaml:2:") || !strings.Contains(p[0].Error(), filepath.Join(user, "a.yaml")+":1") {
		t.Errorf("problems %v", p)
	}
	// The one that counts goes: the other takes over.
	if err := os.Remove(filepath.Join(user, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	c.Reload()
	if m := c.Model(named("a")); m == nil || !strings.Contains(m.Origin, "0.yaml") || len(c.Problems()) != 0 {
		t.Errorf("got %+v, %v", m, c.Problems())
	}
	// Within one file.
	write(t, filepath.Join(user, "b.yaml"), modelText("b")+"---\n"+modelText("b"))
	// And between the folders.
	write(t, filepath.Join(deployed, "default.a.yaml"), modelText("a"))
	c.Reload()
	p = c.Problems()
	if len(p) != 2 || !strings.Contains(p[0].Error(), "b.yaml:8: ") || !strings.Contains(p[1].Error(), deployed) ||
		!strings.Contains(p[1].Error(), user) {
		t.Errorf("problems %v", p)
	}
}

func absolute(name string) []byte {
	return []byte(strings.Replace(modelText(name), "./tiny", "/w/tiny", 1))
}

func TestPut(t *testing.T) {
	c, user, deployed := openCatalog(t)
	if created, err := c.Put(named("b"), absolute("b")); err != nil || !created || names(c) != "a b" {
		t.Fatal(created, err, names(c))
	}
	if created, err := c.Put(named("b"), absolute("b")); err != nil || created {
		t.Fatal("the same again", created, err)
	}
	changed := append(absolute("b"), "  scale: {max: 3}\n"...)
	if checked, err := c.Check(named("b"), changed); err != nil || checked.Created || c.Model(named("b")).Spec.Scale.Max != 1 {
		t.Fatal("a check changes nothing", checked.Created, err)
	}
	if created, err := c.Put(named("b"), changed); err != nil || created || c.Model(named("b")).Spec.Scale.Max != 3 {
		t.Fatal("an update", created, err)
	}
	// A new catalog finds it again.
	again, err := Open(Options{Folder: user, Deployed: deployed})
	if err != nil || names(again) != "a b" || again.Model(named("b")).Spec.Scale.Max != 3 {
		t.Fatal(err, names(again))
	}
	if err := c.Delete(named("b")); err != nil || names(c) != "a" {
		t.Fatal(err, names(c))
	}
	left, _ := os.ReadDir(deployed)
	if len(left) != 0 {
		t.Error("left behind", left)
	}

	for _, tt := range []struct {
		name string
		data []byte
		want string
	}{
		{"a", absolute("a"), "the name is taken by " + filepath.Join(user, "a.yaml") + ":1: edit it there, the server reads the change, or rename this one"},
		{"x", absolute("y"), "the document is about default/y, the path about default/x"},
		{"x", []byte(modelText("x")), "spec.source: a relative source"},
		{"x", []byte("apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: x}\nspec:\n  engine: command\n  args: [python3, ./srv/main.py, \"{port}\"]\n"), `spec.args[1]: "./srv/main.py" is relative`},
		{"x", []byte("apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: x}\nspec:\n  engine: command\n  args: [../bin/serve, \"{port}\"]\n"), `spec.args[0]: "../bin/serve" is relative`},
		{"x", []byte("apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: x}\nspec:\n  engine: command\n  folder: /no/such/folder\n  args: [./serve, \"{port}\"]\n"), `spec.folder: the server's machine has no folder "/no/such/folder"`},
		{"x", append(absolute("x"), "  adapters: [{name: p, source: az://acct/c/p}, {name: q, source: ./q}]\n"...), "spec.adapters[1].source: a relative source"},
		{"x", append(append(absolute("x"), "---\n"...), absolute("y")...), "exactly one Model"},
		{"x", []byte("apiVersion: thaw.dev/v1\nkind: Team\nmetadata: {name: x}\n"), "exactly one Model"},
		{"x", []byte("{"), "not YAML"},
	} {
		if _, err := c.Put(named(tt.name), tt.data); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
	if _, err := c.Put(named("a"), absolute("a")); !errors.Is(err, ErrConflict) {
		t.Error(err)
	}
	if err := c.Delete(named("a")); !errors.Is(err, ErrConflict) {
		t.Error(err)
	}
	if err := c.Delete(named("zz")); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if names(c) != "a" {
		t.Error(names(c))
	}
}

// TestScanWaitsForStableFile: a file is read when it has stood still for one look.
func TestScanWaitsForStableFile(t *testing.T) {
	c, user, _ := openCatalog(t)
	path := filepath.Join(user, "a.yaml")
	write(t, path, "") // an editor has begun
	c.Scan()
	if names(c) != "a" {
		t.Fatal("half an edit was read")
	}
	write(t, path, modelText("a")+"---\n"+modelText("b"))
	c.Scan()
	if names(c) != "a" {
		t.Fatal("read at once")
	}
	c.Scan()
	if names(c) != "a b" {
		t.Fatal("not read", names(c))
	}
	// Replaced by rename: gone for one look.
	if err := os.Rename(path, path+"~"); err != nil {
		t.Fatal(err)
	}
	c.Scan()
	if names(c) != "a b" {
		t.Fatal("taken away at once")
	}
	if err := os.Rename(path+"~", path); err != nil {
		t.Fatal(err)
	}
	c.Scan()
	c.Scan()
	if names(c) != "a b" {
		t.Fatal(names(c))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	c.Scan()
	c.Scan()
	if names(c) != "" {
		t.Fatal(names(c))
	}
	// The folder itself goes: what was there stays.
	write(t, path, modelText("a"))
	c.Reload()
	if err := os.RemoveAll(user); err != nil {
		t.Fatal(err)
	}
	c.Reload()
	if names(c) != "a" || len(c.Problems()) != 1 || !strings.Contains(c.Problems().Error(), "cannot be listed") {
		t.Fatal(names(c), c.Problems())
	}
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, user, _ := openCatalog(t)
		ctx, cancel := context.WithCancel(t.Context())
		changes := make(chan Change, 10)
		done := make(chan error)
		go func() { done <- c.Watch(ctx, func(ch Change) { changes <- ch }) }()
		next := func() Change {
			t.Helper()
			select {
			case ch := <-changes:
				return ch
			case <-time.After(5 * time.Second):
				t.Fatal("nothing told")
				panic("unreachable")
			}
		}
		if ch := next(); len(ch.Models) != 1 {
			t.Fatalf("first %+v", ch)
		}
		write(t, filepath.Join(user, "b.yaml"), modelText("b"))
		if ch := next(); len(ch.Models) != 1 || ch.Models[0].Metadata.Name != "b" || len(ch.Removed) != 0 {
			t.Fatalf("added %+v", ch)
		}
		write(t, filepath.Join(user, "b.yaml"), "bad\n")
		if ch := next(); len(ch.Models) != 0 || len(ch.Problems) != 1 {
			t.Fatalf("bad %+v", ch)
		}
		if err := os.Remove(filepath.Join(user, "b.yaml")); err != nil {
			t.Fatal(err)
		}
		if ch := next(); !slices.Equal(ch.Removed, []functions.Name{named("b")}) || len(ch.Problems) != 0 {
			t.Fatalf("removed %+v", ch)
		}
		before := time.Now()
		if _, err := c.Put(named("p"), absolute("p")); err != nil {
			t.Fatal(err)
		}
		if len(changes) != 1 {
			t.Fatal("put has returned before it was told")
		}
		if ch := next(); len(ch.Models) != 1 || ch.Models[0].Metadata.Name != "p" || time.Since(before) != 0 {
			t.Fatalf("put %+v after %s", ch, time.Since(before))
		}
		time.Sleep(time.Minute)
		select {
		case ch := <-changes:
			t.Fatalf("told for nothing: %+v", ch)
		default:
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestShippedExamples: what we ship reads, and is what the first page tells to try.
func TestShippedExamples(t *testing.T) {
	c, err := Open(Options{Folder: filepath.Join("..", "..", "functions", "shipped")})
	if err != nil || len(c.Problems()) != 0 || c.Model(named("tiny")) == nil {
		t.Fatal(err, c.Problems())
	}
}

// TestConcurrentWatchers: concurrent puts, deletes, scans and watches see whole
// pictures, and every Put is told before it returns.
func TestConcurrentWatchers(t *testing.T) {
	c, _, _ := openCatalog(t)
	ctx, cancel := context.WithCancel(t.Context())
	delivered := make(map[functions.Name]bool) // the watcher's; read under mu
	var mu sync.Mutex
	var watching, working sync.WaitGroup
	watching.Go(func() {
		_ = c.Watch(ctx, func(ch Change) {
			mu.Lock()
			defer mu.Unlock()
			for _, m := range ch.Models {
				delivered[m.FullName()] = true
			}
			for _, n := range ch.Removed {
				delete(delivered, n)
			}
		})
	})
	is := func(n functions.Name) bool {
		mu.Lock()
		defer mu.Unlock()
		return delivered[n]
	}
	for !is(named("a")) {
		runtime.Gosched() // until the watch has begun
	}
	for _, name := range []string{"p", "q", "r"} {
		working.Go(func() {
			for range 10 {
				if _, err := c.Put(named(name), absolute(name)); err != nil || !is(named(name)) {
					t.Errorf("%s: %v, told %v", name, err, is(named(name)))
				}
				c.Scan()
				if err := c.Delete(named(name)); err != nil || is(named(name)) {
					t.Errorf("%s: %v, told %v", name, err, is(named(name)))
				}
			}
		})
	}
	working.Wait()
	cancel()
	watching.Wait()
	if names(c) != "a" || len(c.Problems()) != 0 {
		t.Error(names(c), c.Problems())
	}
}
