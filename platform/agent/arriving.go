package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
//	NAME/model    a link: the path that the engine gets
//	NAME/socket   where nothing can be mounted: the weights, for an engine that
//	              reads from it (ember); files has the small ones then
//
// While bytes arrive the link leads to the mount. When the engine is READY it is
// turned, in one rename, to the checkpoint's own files, so that what is opened
// late is opened there, and the mount is removed as soon as no process has a file of it
// open. The folder is removed with the replica.
const (
	arrivingFiles = "files"
	arrivingModel = "model"
	arrivingBytes = "socket"
)

// arrivingViews are the checkpoints that engines read while they arrive.
type arrivingViews struct {
	mu                 sync.Mutex // guards all below
	views              map[string]*arrivingView
	retained           map[string]int // folders that adopted engines read from
	cleaned            bool
	mountFailureLogged bool // that nothing can be shown here
	closed             bool
}

// StageEarly begins to stage a source and makes its files readable before they have
// arrived. It is a replica.EarlyStager.
func (s *Stager) StageEarly(ctx context.Context, req replica.StageRequest,
	progress func(have, total functions.Bytes)) (replica.PartialCheckpoint, error) {
	st, err := s.startStaging(ctx, req)
	if err != nil {
		return replica.PartialCheckpoint{}, err
	}
	stop := forwardProgress(st, req, progress)
	a, err := st.Arriving(ctx)
	if err != nil {
		stop()
		s.abandon(ctx, st)
		return replica.PartialCheckpoint{}, err
	}
	var view *arrivingView
	if a.Missing > 0 && a.Missing >= int64(s.o.Early) && s.o.Arriving != "" {
		view, err = s.newArrivingView(ctx, req, a)
		if err != nil {
			s.logNotMounted(err)
		}
	}
	if view == nil {
		a.Close()
		return replica.PartialCheckpoint{Complete: true, Rest: func(ctx context.Context) (replica.Checkpoint, error) {
			defer stop()
			return s.awaitCheckpoint(ctx, req, st)
		}}, nil
	}
	k := s.openScratchCache(ctx, req, a)
	return replica.PartialCheckpoint{
		Path: view.link, Weights: view.weights, Cache: k.path(), CacheShared: k.shared(),
		Rest: func(ctx context.Context) (replica.Checkpoint, error) {
			defer stop()
			c, err := s.awaitStaging(ctx, st, func() error { return a.Verified(ctx) })
			if err != nil {
				k.release()
				view.remove()
				return replica.Checkpoint{}, err
			}
			st.Release() // the lease stays
			view.setPath(c.Path)
			out := s.checkpointOf(c, k)
			release := out.Release
			out.Release = func() { view.remove(); release() }
			return out, nil
		},
		EngineReady: view.switchToFiles,
	}, nil
}

// logNotMounted logs why a checkpoint cannot be read while it arrives; that this machine
// cannot mount is logged once.
func (s *Stager) logNotMounted(err error) {
	s.arrivals.mu.Lock()
	alreadyLogged := s.arrivals.mountFailureLogged
	s.arrivals.mountFailureLogged = alreadyLogged || errors.Is(err, mount.ErrUnavailable)
	s.arrivals.mu.Unlock()
	if !alreadyLogged {
		s.o.Log.Info("engines start when all their bytes are here", "why", err)
	}
}

// newArrivingView makes the files of an arriving checkpoint readable.
func (s *Stager) newArrivingView(ctx context.Context, req replica.StageRequest, a *loader.Arrival) (*arrivingView, error) {
	if err := s.removeStaleViews(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(s.o.Arriving, "")
	if err != nil {
		return nil, err
	}
	v := &arrivingView{owner: &s.arrivals, dir: dir, link: filepath.Join(dir, arrivingModel), mountDir: filepath.Join(dir, arrivingFiles),
		arrival: a}
	if err = os.Mkdir(v.mountDir, 0o755); err == nil {
		err = os.Symlink(arrivingFiles, v.link)
	}
	if err == nil {
		err = s.serveView(ctx, req, v)
	}
	if err == nil && !s.arrivals.add(v) {
		err = context.Canceled
		v.server.Close()
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return v, nil
}

// serveView mounts the files or, where nothing can be mounted and the engine can read from
// a socket, serves the weights on one.
func (s *Stager) serveView(ctx context.Context, req replica.StageRequest, v *arrivingView) error {
	files := functions.ConvertAll(v.arrival.Files, func(f loader.File) mount.File { return mount.File{Name: f.Name, Size: f.Size} })
	var m *mount.Mount
	err := fmt.Errorf("%w: it is disabled", mount.ErrUnavailable)
	if !s.o.NoMount {
		m, err = mount.New(v.mountDir, files, v.arrival, s.o.Log)
	}
	if err == nil {
		v.server = m
		return nil
	}
	if req.Engine != functions.EngineEmber || !errors.Is(err, mount.ErrUnavailable) {
		return err
	}
	named := func(f mount.File) bool {
		return f.Name == "model.safetensors" || f.Name == "model.safetensors.index.json"
	}
	if !slices.ContainsFunc(files, named) {
		return err // it finds others in the folder alone
	}
	// All files but the weights are small and are read first.
	for _, f := range v.arrival.Files {
		if source.Weights(f.Name) {
			continue
		}
		if f.Size > maxSmallFile {
			return err
		}
		b := make([]byte, f.Size)
		if _, err := v.arrival.ReadAt(ctx, f.Name, b, 0); err != nil {
			return err
		}
		name := filepath.Join(v.mountDir, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, b, 0o444); err != nil {
			return err
		}
	}
	socket := filepath.Join(v.dir, arrivingBytes)
	e, serr := mount.Serve(socket, files, v.arrival, s.o.Log)
	if serr != nil {
		return serr // such as a path that is too long for a socket
	}
	v.server, v.weights = endpointServer{e, v.mountDir}, "unix:"+socket
	return nil
}

// maxSmallFile bounds in bytes a file other than weights.
const maxSmallFile = 64 << 20

// endpointServer serves the weights on a socket. An engine that is READY has read all of
// them.
type endpointServer struct {
	*mount.Endpoint
	dir string
}

func (s endpointServer) TryUnmount() bool {
	s.Close()
	return true
}

func (s endpointServer) Close() {
	s.Endpoint.Close()
	os.RemoveAll(s.dir)
}

// removeStaleViews makes the folder and, once, removes what earlier agents left there for
// engines that have ended. It is called when a replica is started, after adoption. Mounts
// were unmounted when the node was opened.
func (s *Stager) removeStaleViews() error {
	s.arrivals.mu.Lock()
	defer s.arrivals.mu.Unlock()
	if s.arrivals.cleaned {
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
		if dir := filepath.Join(s.o.Arriving, e.Name()); s.arrivals.retained[dir] == 0 {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	s.arrivals.cleaned = true
	return nil
}

// RetainView keeps the folder that an adopted engine reads from, and returns where its
// checkpoint really is. Any other path is returned as it is, with a release that does
// nothing.
func (s *Stager) RetainView(path string) (realPath string, release func()) {
	if !s.isViewPath(path) {
		return path, func() {}
	}
	dir := filepath.Dir(path)
	if to, err := os.Readlink(path); err == nil && filepath.IsAbs(to) {
		path = to
	}
	e := &s.arrivals
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.retained == nil {
		e.retained = make(map[string]int)
	}
	e.retained[dir]++
	return path, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.retained[dir]--; e.retained[dir] == 0 {
			delete(e.retained, dir)
			os.RemoveAll(dir) // links only; what stays is swept by the next agent
		}
	}
}

func (a *arrivingViews) add(v *arrivingView) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	if a.views == nil {
		a.views = make(map[string]*arrivingView)
	}
	a.views[v.dir] = v
	return true
}

// close unmounts all views. Engines that are left running have links
// that lead to their files, and those stay.
func (a *arrivingViews) close() {
	a.mu.Lock()
	a.closed = true
	all := slices.Collect(maps.Values(a.views))
	a.mu.Unlock()
	for _, v := range all {
		v.unmount()
	}
}

// arrivingView is one checkpoint that an engine reads, or has read, while it arrives.
type arrivingView struct {
	owner               *arrivingViews
	dir, link, mountDir string
	arrival             *loader.Arrival
	weights             string // address that serves the weights; "": they are in the folder
	server              interface {
		TryUnmount() bool // false while it is in use
		Close()
	}

	mu        sync.Mutex // guards the fields below
	path      string     // of the checkpoint, once it is whole
	linkMade  bool       // the link leads there
	unmounted bool       // the mount is
	removed   bool
}

// setPath sets where the files are, once all have arrived.
func (v *arrivingView) setPath(path string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.path = path
}

// switchToFiles points the link to the files themselves, and removes the mount if no
// process has a file of it open.
func (v *arrivingView) switchToFiles() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.removed || v.linkMade || v.path == "" {
		return
	}
	next := v.link + ".new"
	if os.Symlink(v.path, next) != nil || os.Rename(next, v.link) != nil {
		os.Remove(next)
		return // the mount stays and does as well
	}
	v.linkMade = true
	if v.server.TryUnmount() {
		v.releaseMountLocked()
		// For engines that resolved the link when they started.
		_ = os.Symlink(v.path, v.mountDir)
	}
}

// releaseMountLocked releases the arriving bytes; mu must be held.
func (v *arrivingView) releaseMountLocked() {
	v.unmounted = true
	v.arrival.Close()
	os.Remove(v.mountDir)
}

// unmount ends the mount when the agent ends. The links stay.
func (v *arrivingView) unmount() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.unmounted {
		v.server.Close()
		v.releaseMountLocked()
	}
}

// remove deletes the view with its folder when the replica ends.
func (v *arrivingView) remove() {
	v.unmount()
	v.mu.Lock()
	done := v.removed
	v.removed = true
	v.mu.Unlock()
	if done {
		return
	}
	os.RemoveAll(v.dir)
	v.owner.mu.Lock()
	delete(v.owner.views, v.dir)
	v.owner.mu.Unlock()
}

// ViewLost reports that a path was a mount of an earlier agent, and ended with it. A link
// that leads to the files themselves is still valid.
func (s *Stager) ViewLost(path string) bool {
	if !s.isViewPath(path) {
		return false
	}
	to, err := os.Readlink(path)
	return err != nil || !filepath.IsAbs(to)
}

// isViewPath reports whether a path is one that engines get while files arrive.
func (s *Stager) isViewPath(path string) bool {
	return s.o.Arriving != "" && filepath.Base(path) == arrivingModel && filepath.Dir(filepath.Dir(path)) == filepath.Clean(s.o.Arriving)
}
