package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/mount"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/runtime/replica"
)

// A checkpoint that is still arriving lives in a folder of its own, below
// StagerOptions.Arriving:
//
//	NAME/files    the mount, whose reads wait for their bytes
//	NAME/model    a link, which is what the engine is given
//	NAME/socket   where nothing can be mounted: the weights, for an engine that
//	              asks for them (ember); files are the small ones then
//
// While bytes come the link leads to the mount. When the engine is READY it is
// turned, in one rename, to the checkpoint's own files, so that what is opened
// late is opened there, and the mount goes as soon as nobody has a file of it
// open. The folder goes with the replica.
const (
	arrivingFiles = "files"
	arrivingModel = "model"
	arrivingBytes = "socket"
)

// early is what of a stager is about checkpoints that are still arriving.
type early struct {
	mu     sync.Mutex // guards all below
	shown  map[string]*shown
	held   map[string]int // folders that adopted engines were given
	swept  bool
	told   bool // that nothing can be shown here
	closed bool
}

// StageEarly brings a source here and shows its files before they are. It is a
// replica.EarlyStager.
func (s *Stager) StageEarly(ctx context.Context, w replica.StageRequest, progress func(have, whole functions.Bytes)) (replica.PartialCheckpoint, error) {
	st, err := s.begin(ctx, w)
	if err != nil {
		return replica.PartialCheckpoint{}, err
	}
	stop := tell(st, progress)
	a, err := st.Arriving(ctx)
	if err != nil {
		stop()
		s.drop(ctx, st)
		return replica.PartialCheckpoint{}, err
	}
	var view *shown
	if a.Missing > 0 && a.Missing >= int64(s.o.Early) && s.o.Arriving != "" {
		view, err = s.show(ctx, w, a)
		if err != nil {
			s.unseen(err)
		}
	}
	if view == nil {
		a.Close()
		return replica.PartialCheckpoint{Complete: true, Rest: func(ctx context.Context) (replica.Checkpoint, error) {
			defer stop()
			return s.whole(ctx, w, st)
		}}, nil
	}
	k := s.cacheComing(ctx, w, a)
	return replica.PartialCheckpoint{
		Path: view.link, Weights: view.weights, Cache: k.path(),
		Rest: func(ctx context.Context) (replica.Checkpoint, error) {
			defer stop()
			c, err := s.wait(ctx, st, func() error { return a.Verified(ctx) })
			if err != nil {
				k.release()
				view.end()
				return replica.Checkpoint{}, err
			}
			st.Release() // the lease stays
			view.whole(c.Path)
			out := staged(c, k)
			release := out.Release
			out.Release = func() { view.end(); release() }
			return out, nil
		},
		EngineReady: view.settle,
	}, nil
}

// unseen tells once that nothing can be shown on this machine, and of
// everything else each time.
func (s *Stager) unseen(err error) {
	s.early.mu.Lock()
	told := s.early.told
	s.early.told = told || errors.Is(err, mount.ErrUnavailable)
	s.early.mu.Unlock()
	if !told {
		s.o.Log.Info("engines start when all their bytes are here", "why", err)
	}
}

// show makes what arrives readable.
func (s *Stager) show(ctx context.Context, w replica.StageRequest, a *loader.Arrival) (*shown, error) {
	if err := s.sweep(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(s.o.Arriving, "")
	if err != nil {
		return nil, err
	}
	v := &shown{of: &s.early, dir: dir, link: filepath.Join(dir, arrivingModel), at: filepath.Join(dir, arrivingFiles), arrival: a}
	if err = os.Mkdir(v.at, 0o755); err == nil {
		err = os.Symlink(arrivingFiles, v.link)
	}
	if err == nil {
		err = s.face(ctx, w, v)
	}
	if err == nil && !s.early.add(v) {
		err = context.Canceled
		v.face.Close()
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return v, nil
}

// face mounts the files or, where that cannot be and the engine can ask, serves
// them.
func (s *Stager) face(ctx context.Context, w replica.StageRequest, v *shown) error {
	files := make([]mount.File, 0, len(v.arrival.Files))
	for _, f := range v.arrival.Files {
		files = append(files, mount.File{Name: f.Name, Size: f.Size})
	}
	o := mount.Options{Log: s.o.Log}
	var m *mount.Mount
	err := fmt.Errorf("%w: it is not wanted", mount.ErrUnavailable)
	if !s.o.NoMount {
		m, err = mount.New(v.at, files, v.arrival, o)
	}
	if err == nil {
		v.face = m
		return nil
	}
	if w.Engine != functions.EngineEmber || !errors.Is(err, mount.ErrUnavailable) {
		return err
	}
	// Everything but the weights is small and comes first.
	for _, f := range v.arrival.Files {
		if source.Weights(f.Name) {
			continue
		}
		if f.Size > maxBeside {
			return err
		}
		b := make([]byte, f.Size)
		if _, err := v.arrival.ReadAt(ctx, f.Name, b, 0); err != nil {
			return err
		}
		name := filepath.Join(v.at, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, b, 0o444); err != nil {
			return err
		}
	}
	e, serr := mount.Serve(filepath.Join(v.dir, arrivingBytes), files, v.arrival, o)
	if serr != nil {
		return serr // such as a path that is too long for a socket
	}
	v.face, v.weights = served{e, v.at}, "unix:"+e.Path()
	return nil
}

// maxBeside is the most bytes of a file beside weights.
const maxBeside = 64 << 20

// served is the face of an endpoint: an engine that is READY has read it all.
type served struct {
	*mount.Endpoint
	small string
}

func (s served) TryUnmount() bool {
	s.Close()
	return true
}

func (s served) Close() {
	s.Endpoint.Close()
	os.RemoveAll(s.small)
}

// sweep makes the folder and, once, clears away what earlier agents left there
// for engines that are gone. It is called when a replica is started, and by then
// it is known which live. Mounts were swept when the node was opened.
func (s *Stager) sweep() error {
	s.early.mu.Lock()
	defer s.early.mu.Unlock()
	if s.early.swept {
		return nil
	}
	if err := os.MkdirAll(s.o.Arriving, 0o755); err != nil {
		return err
	}
	list, err := os.ReadDir(s.o.Arriving)
	if err != nil {
		return err
	}
	for _, e := range list {
		if dir := filepath.Join(s.o.Arriving, e.Name()); s.early.held[dir] == 0 {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	s.early.swept = true
	return nil
}

// Hold keeps the folder that an adopted engine was given, and tells where its
// checkpoint really is. Any other path is what it is, and there is nothing to
// let go.
func (s *Stager) Hold(path string) (really string, release func()) {
	if !s.shows(path) {
		return path, func() {}
	}
	dir := filepath.Dir(path)
	if to, err := os.Readlink(path); err == nil && filepath.IsAbs(to) {
		path = to
	}
	e := &s.early
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held == nil {
		e.held = make(map[string]int)
	}
	e.held[dir]++
	return path, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.held[dir]--; e.held[dir] == 0 {
			delete(e.held, dir)
			os.RemoveAll(dir) // links only; what stays is swept by the next agent
		}
	}
}

func (e *early) add(v *shown) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	if e.shown == nil {
		e.shown = make(map[string]*shown)
	}
	e.shown[v.dir] = v
	return true
}

// close ends what is still shown. Engines that are left running have links
// that lead to their files, and those stay.
func (e *early) close() {
	e.mu.Lock()
	e.closed = true
	var all []*shown
	for _, v := range e.shown {
		all = append(all, v)
	}
	e.mu.Unlock()
	for _, v := range all {
		v.leave()
	}
}

// shown is one checkpoint that is, or was, shown while it arrives.
type shown struct {
	of            *early
	dir, link, at string
	arrival       *loader.Arrival
	weights       string // where they are asked for; "" in the folder
	face          interface {
		TryUnmount() bool // goes, unless it is in use
		Close()
	}

	mu     sync.Mutex // guards the fields below
	path   string     // of the checkpoint, once it is whole
	turned bool       // the link leads there
	gone   bool       // the mount is
	over   bool
}

// whole says where the files are, now that they are.
func (v *shown) whole(path string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.path = path
}

// settle turns the link to the files themselves, and takes the mount away if
// nobody is in it.
func (v *shown) settle() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over || v.turned || v.path == "" {
		return
	}
	next := v.link + ".new"
	if os.Symlink(v.path, next) != nil || os.Rename(next, v.link) != nil {
		os.Remove(next)
		return // the mount stays and does as well
	}
	v.turned = true
	if v.face.TryUnmount() {
		v.unmounted()
		// For who resolved the link at its start.
		_ = os.Symlink(v.path, v.at)
	}
}

// unmounted lets go of the bytes; mu is held.
func (v *shown) unmounted() {
	v.gone = true
	v.arrival.Close()
	os.Remove(v.at)
}

// leave is the end of the agent: the mount goes with it, links stay.
func (v *shown) leave() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.gone {
		v.face.Close()
		v.unmounted()
	}
}

// end is the end of the replica: all of it goes.
func (v *shown) end() {
	v.leave()
	v.mu.Lock()
	over := v.over
	v.over = true
	v.mu.Unlock()
	if over {
		return
	}
	os.RemoveAll(v.dir)
	v.of.mu.Lock()
	delete(v.of.shown, v.dir)
	v.of.mu.Unlock()
}

// Lost reports that a path was shown by an agent that is gone, and its files
// with it. A link that was turned to the files themselves is as good as ever.
func (s *Stager) Lost(path string) bool {
	if !s.shows(path) {
		return false
	}
	to, err := os.Readlink(path)
	return err != nil || !filepath.IsAbs(to)
}

// shows: a path is one that engines are given while files arrive.
func (s *Stager) shows(path string) bool {
	return s.o.Arriving != "" && filepath.Base(path) == arrivingModel && filepath.Dir(filepath.Dir(path)) == filepath.Clean(s.o.Arriving)
}
