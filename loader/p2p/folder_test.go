package p2p_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/p2p"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func writeFile(t *testing.T, folder, name string, body []byte) {
	t.Helper()
	p := filepath.Join(folder, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, body, 0o644); err != nil {
		t.Fatal(err)
	}
}

// shareFolder is a node that lends one folder, and whose answers pass through
// between, if that is set.
func shareFolder(t *testing.T, folder string, also source.Globs, disk loader.InPlace) (c *cluster, at string) {
	t.Helper()
	c = &cluster{}
	node := p2p.New(p2p.Options{ID: "home", Nodes: c.peers, Folders: &p2p.SharedFolders{Disk: disk,
		Shared: func(f string) (source.Globs, bool) { return also, f == folder }}})
	srv := httptest.NewServer(node.Handler(noCheckpoints{}))
	t.Cleanup(func() { srv.Close(); node.Close() })
	c.nodes = append(c.nodes, p2p.Peer{ID: "home", URL: srv.URL})
	return c, srv.URL
}

// noCheckpoints is a BlockServer without checkpoints.
type noCheckpoints struct{}

func (noCheckpoints) ReadBlock(context.Context, string, string, int64, int64) (*loader.BlockRead, error) {
	return nil, &source.Error{Kind: source.Missing}
}
func (noCheckpoints) HasPlan(string) bool { return false }

func TestFolderConformance(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Location {
		folder := filepath.Join(t.TempDir(), "a model, 100%")
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		c, _ := shareFolder(t, folder, source.Globs{"*", "*/*", "*/*/*"}, dir.Source{})
		node := p2p.New(p2p.Options{ID: "other", Nodes: c.peers})
		t.Cleanup(node.Close)
		return sourcetest.Location{
			FolderOnly: true, Source: node.Source(), Location: loader.PeerLocation("home", folder),
			Nowhere: loader.PeerLocation("home", folder+"/nowhere"),
			Put:     func(t *testing.T, name string, body []byte) { writeFile(t, folder, name, body) },
			Delete: func(t *testing.T, name string) {
				if err := os.Remove(filepath.Join(folder, name)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// A folder on another node's disk is staged with the files its model names and no
// others; nodes that stage it together read it once.
func TestFolderOfPeer(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "tiny")
	want := model(3*block + 7)
	for name, b := range want {
		writeFile(t, folder, name, b)
	}
	writeFile(t, folder, "modeling.py", []byte("pass"))
	writeFile(t, folder, ".env", []byte("CANARY"))
	writeFile(t, folder, "notes.md", []byte("CANARY"))
	c, _ := shareFolder(t, folder, source.Globs{"*.py"}, dir.Source{})
	n := c.join(t, "one", nil, nil)
	s, err := n.loader.Stage(t.Context(), "./tiny",
		loader.StageOptions{Base: loader.PeerLocation("home", filepath.Dir(folder)), Files: source.Globs{"*.py"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	got, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer got.Lease.Release()
	want["modeling.py"] = []byte("pass")
	check(t, got, want)
	if len(got.Files) != 3 || got.InPlace {
		t.Errorf("%+v", got)
	}
}

// changing is a disk on which something happens before a file is opened.
type changing struct {
	dir.Source
	before func(name string)
	// write, if set, is held while before writes: a listing or a file that is half written
	// would be one version more.
	write *sync.RWMutex
}

func (c changing) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	if c.write != nil {
		c.write.RLock()
		defer c.write.RUnlock()
	}
	return c.Source.Plan(ctx, location, also)
}

func (c changing) Open(file source.File) (*os.File, error) {
	c.before(file.Name)
	if c.write != nil {
		c.write.RLock()
		defer c.write.RUnlock()
	}
	return c.Source.Open(file)
}

// A folder that changes while it is read is staged in one version or the other, and
// one that keeps changing is an error: never a mixture.
func TestFolderChanges(t *testing.T) {
	for times, every := range map[int64]int64{
		1:    5,
		1000: 2, // whatever is read at once: the file is opened more than twice for it
	} {
		folder := t.TempDir()
		versions := func(seed byte) map[string][]byte {
			m := model(6 * block)
			w := bytes.Clone(m["model.safetensors"])
			for i := len(w) - 6*block; i < len(w); i++ {
				w[i] ^= seed
			}
			return map[string][]byte{"config.json": []byte("{}"), "model.safetensors": w}
		}
		write := func(seed byte) {
			for name, b := range versions(seed) {
				writeFile(t, folder, name, b)
				// As far apart as versions are told by.
				at := time.Unix(1e9+int64(seed), 0)
				if err := os.Chtimes(filepath.Join(folder, name), at, at); err != nil {
					t.Fatal(err)
				}
			}
		}
		write(0)
		var opened, changed atomic.Int64
		disk := changing{write: new(sync.RWMutex)}
		disk.before = func(name string) {
			if name != "model.safetensors" || opened.Add(1)%every != every-1 {
				return
			}
			disk.write.Lock()
			defer disk.write.Unlock()
			if n := changed.Add(1); n <= times {
				write(byte(n))
			}
		}
		c, _ := shareFolder(t, folder, nil, disk)
		n := c.join(t, "one", nil, nil)
		s, err := n.loader.Stage(t.Context(), folder, loader.StageOptions{Base: loader.PeerLocation("home", "/")})
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Wait(t.Context())
		s.Release()
		if times == 1 {
			if err != nil {
				t.Fatal(err)
			}
			check(t, got, versions(1))
			got.Lease.Release()
			continue
		}
		if source.KindOf(err) != source.Changed {
			t.Errorf("a folder that goes on changing: %v, %v", got, err)
		}
	}
}

// What changes between reading and sending is not sent.
func TestFolderChangesWhileRead(t *testing.T) {
	folder := t.TempDir()
	writeFile(t, folder, "model.gguf", bytes.Repeat([]byte{1}, 3<<20))
	opens := 0
	disk := changing{before: func(string) {
		// The first opening is to read, the next ones are to look again.
		if opens++; opens == 3 {
			writeFile(t, folder, "model.gguf", bytes.Repeat([]byte{2}, 3<<20))
		}
	}}
	c, at := shareFolder(t, folder, nil, disk)
	node := p2p.New(p2p.Options{ID: "other", Nodes: c.peers})
	t.Cleanup(node.Close)
	b := node.Source()
	plan, err := b.Plan(t.Context(), loader.PeerLocation("home", folder), nil)
	if err != nil || len(plan.Files) != 1 {
		t.Fatal(plan, err, at)
	}
	body, err := b.Read(t.Context(), plan.Files[0], 0, 3<<20)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(body)
	body.Close()
	if err == nil || len(got) != 1<<20 || bytes.Contains(got, []byte{2}) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := b.Read(t.Context(), plan.Files[0], 0, 1); source.KindOf(err) != source.Changed {
		t.Errorf("the old version: %v", err)
	}
}

// What is not shared cannot be read.
func TestFolderRequests(t *testing.T) {
	root := t.TempDir()
	folder := filepath.Join(root, "m")
	writeFile(t, folder, "model.gguf", []byte("GGUF"))
	writeFile(t, folder, "secret.md", []byte("CANARY"))
	writeFile(t, folder, ".hidden.json", []byte("CANARY"))
	writeFile(t, root, "x.json", []byte("CANARY"))
	if err := os.Symlink("../x.json", filepath.Join(folder, "link.txt")); err == nil {
		defer os.Remove(filepath.Join(folder, "link.txt"))
	}
	_, at := shareFolder(t, folder, nil, dir.Source{})
	get := func(at, path, rng string, q url.Values) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "GET", at+path+"?"+q.Encode(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if rng != "" {
			req.Header.Set("Range", rng)
		}
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		if strings.Contains(string(b), "CANARY") {
			t.Errorf("%s %v: %s", path, q, b)
		}
		return r.StatusCode, string(b)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for _, tc := range []struct {
		path, folder, file, rng string
		status                  int
	}{
		{"/peers/folder", root, "", "", 404},
		{"/peers/folder", folder + "/", "", "", 404},
		{"/peers/folder", folder + "/../m", "", "", 404},
		{"/peers/folder", "m", "", "", 404},
		{"/peers/folder", "", "", "", 404},
		{"/peers/folder", folder, "", "", 200}, // a link that leads out is not on the list
		{"/peers/file", root, "x.json", "bytes=0-1", 404},
		{"/peers/file", folder, "../x.json", "bytes=0-1", 403},
		{"/peers/file", folder, "/etc/passwd", "bytes=0-1", 403},
		{"/peers/file", folder, "secret.md", "bytes=0-1", 403},
		{"/peers/file", folder, ".hidden.json", "bytes=0-1", 403},
		{"/peers/file", folder, "link.txt", "bytes=0-1", 403},
		{"/peers/file", folder, "gone.json", "bytes=0-1", 412},
		{"/peers/file", folder, "model.gguf", "bytes=0-1", 412}, // no version
	} {
		if status, b := get(at, tc.path, tc.rng, url.Values{"folder": {tc.folder}, "file": {tc.file}}); status != tc.status ||
			strings.Contains(b, "link.txt\"") {
			t.Errorf("%+v: %d %s", tc, status, b)
		}
	}
	// A node that lends no folders says so.
	c := &cluster{}
	node := p2p.New(p2p.Options{ID: "home", Nodes: c.peers})
	srv := httptest.NewServer(node.Handler(noCheckpoints{}))
	defer srv.Close()
	defer node.Close()
	if status, _ := get(srv.URL, "/peers/folder", "", url.Values{"folder": {folder}}); status != 404 {
		t.Errorf("status %d", status)
	}
	// An unknown node, or one that is gone, cannot be reached: no reason to
	// believe that the folder is gone.
	for _, known := range [][]p2p.Peer{nil, {{ID: "home", URL: "http://127.0.0.1:1"}}, {{ID: "home"}}} {
		node := p2p.New(p2p.Options{ID: "other", Nodes: func() []p2p.Peer { return known }})
		if _, err := node.Source().Plan(t.Context(), loader.PeerLocation("home", folder), nil); source.KindOf(err) != source.Unavailable {
			t.Errorf("%v: %v", known, err)
		}
		node.Close()
	}
}

func TestSpans(t *testing.T) {
	folder := t.TempDir()
	writeFile(t, folder, "model.gguf", []byte("GGUF"))
	c, at := shareFolder(t, folder, nil, dir.Source{})
	node := p2p.New(p2p.Options{ID: "other", Nodes: c.peers})
	defer node.Close()
	plan, err := node.Source().Plan(t.Context(), loader.PeerLocation("home", folder), nil)
	if err != nil {
		t.Fatal(err)
	}
	for rng, status := range map[string]int{"": 416, "bytes=0-3": 206, "bytes=3-3": 206, "bytes=0-4": 416, "bytes=4-4": 416, "bytes=2-1": 416, "bytes=-1-2": 416, "bytes=-2": 416, "bytes=0-9223372036854775807": 416, "bits=0-1": 416} {
		req, err := http.NewRequestWithContext(t.Context(), "GET",
			at+"/peers/file?"+url.Values{"folder": {folder}, "file": {"model.gguf"}}.Encode(), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("If-Match", plan.Files[0].Version)
		if rng != "" {
			req.Header.Set("Range", rng)
		}
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != status {
			t.Errorf("%q: %d", rng, r.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
