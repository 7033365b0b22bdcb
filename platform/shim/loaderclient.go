package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/runtime/jsonsocket"
	"github.com/thaw-dev/thaw/runtime/replica"
)

const (
	// SocketName of the loader, in Options.Sockets.
	SocketName = "loader.sock"
	// DefaultLoaderTimeout is how long a staging waits for a loader that does not
	// answer: longer than a DaemonSet takes to put a new one in its place.
	DefaultLoaderTimeout = 2 * time.Minute

	helloWait   = 10 * time.Second       // for the loader's welcome
	writeWait   = 5 * time.Second        // for a line of ours to go out
	dialFirst   = 50 * time.Millisecond  // between two dials, at first
	dialMax     = 2 * time.Second        // and at most
	statusEvery = 2 * time.Second        // a status is said again
	flushWait   = 500 * time.Millisecond // for the last one to go out
)

// ErrNoLoader: the node's loader does not answer.
var ErrNoLoader = errors.New("the node's loader does not answer")

// loaderClient is the shim's side of the loader's socket. It is the replica's Stager.
type loaderClient struct {
	socket        string
	dial          func(ctx context.Context) (net.Conn, error)
	store         string // the loader's folder, where this process sees it: the parent of Options.Sockets
	weights       string // the shim's folder for checkpoints that come as open folders
	hello         controlstream.Shim
	loaderTimeout time.Duration
	cache         string                    // the engine's, for each checkpoint
	stop          func(controlstream.Drain) // must not block
	log           *slog.Logger
	wake          newest.Signal // there is something to say

	mu          sync.Mutex
	requests    map[int]*stagingRequest // requested or held checkpoints
	last        int                     // id of the newest
	status      *functions.ReplicaStatus
	statusCount uint64        // counts statuses
	sentCount   uint64        // of those, how many were sent
	sentChanged chan struct{} // closed and replaced when sentCount grows
	node        string
	down        time.Time // since when there is no loader; zero while there is
	failure     error     // the last dial's
	gaveUp      bool      // a staging was given up for want of a loader
}

// stagingRequest is one staging, from the request until its checkpoint is released.
type stagingRequest struct {
	controlstream.Stage
	sent      bool // over this connection
	progress  func(have, total functions.Bytes)
	problem   func(string)       // nil: none is told
	answer    chan stagingResult // gets one
	delivered bool               // the answer was given
	folder    *openFolder        // it came as an open folder; nil: it is read by its path, which a pod cannot

	held         bool          // over this connection the loader has answered with the checkpoint
	verification *verification // nil: none is wanted
}

// verification is a request to read a checkpoint again.
type verification struct {
	sent   bool // over this connection
	answer chan controlstream.Verified
}

// finishVerificationLocked delivers the answer to a verification; the lock is held.
func (r *stagingRequest) finishVerificationLocked(x controlstream.Verified) {
	if r.verification != nil {
		r.verification.answer <- x // never blocks: it gets one
		r.verification = nil
	}
}

type stagingResult struct {
	controlstream.Staged
	err error
}

func newLoaderClient(o Options, stop func(controlstream.Drain)) *loaderClient {
	socket := filepath.Join(o.Sockets, SocketName)
	return &loaderClient{
		socket: socket, dial: func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}, store: filepath.Dir(o.Sockets), weights: filepath.Join(o.Dir, "weights"), loaderTimeout: o.LoaderTimeout, stop: stop, log: o.Log,
		hello: controlstream.Shim{PodIP: o.IP, Port: o.Port, Version: o.Version, Folders: runtime.GOOS == "linux"},
		wake:  newest.NewSignal(), requests: map[int]*stagingRequest{}, sentChanged: make(chan struct{}), down: time.Now(),
	}
}

// Run keeps a connection to the loader until ctx ends.
func (l *loaderClient) Run(ctx context.Context) error {
	pause := backoff.Backoff{First: dialFirst, Max: dialMax}
	for ctx.Err() == nil {
		err := l.runConnection(ctx, pause.Reset)
		if ctx.Err() != nil {
			break
		}
		l.onDisconnect(err)
		backoff.Sleep(ctx, pause.Next())
	}
	return nil
}

// onDisconnect notes that there is no loader, and says so once. A staging that waits for a
// checkpoint has waited long enough after the bound.
func (l *loaderClient) onDisconnect(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pending := false
	for _, a := range l.requests {
		pending = pending || !a.delivered
	}
	if first := l.down.IsZero(); first || l.failure == nil {
		if first {
			l.down = time.Now()
		}
		if pending {
			l.log.Error("the node's loader does not answer, and the weights come from it", "socket", l.socket, "error", err, "giving up after",
				l.loaderTimeout)
		} else {
			l.log.Warn("the node's loader does not answer; dialling again", "socket", l.socket, "error", err)
		}
	}
	l.failure = err
	if time.Since(l.down) < l.loaderTimeout {
		return
	}
	for _, a := range l.requests {
		if !a.delivered {
			l.gaveUp = true
			a.finishLocked(stagingResult{err: fmt.Errorf("%w on %s for %s: %w", ErrNoLoader, l.socket, l.loaderTimeout, err)})
		}
		a.finishVerificationLocked(controlstream.Verified{Error: fmt.Sprintf("%v on %s for %s: %v", ErrNoLoader, l.socket, l.loaderTimeout, err)})
	}
}

// finishLocked delivers the result; the lock is held.
func (r *stagingRequest) finishLocked(x stagingResult) {
	select {
	case r.answer <- x:
	default:
	}
}

// runConnection is one connection, from the hello to its end.
func (l *loaderClient) runConnection(ctx context.Context, welcomed func()) error {
	dctx, cancel := context.WithTimeout(ctx, helloWait)
	defer cancel()
	nc, err := l.dial(dctx)
	if err != nil {
		return err
	}
	conn := jsonsocket.NewConn(nc, controlstream.MaxLine)
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	hello := l.hello
	hello.Folders = conn.AcceptFiles() && hello.Folders
	defer conn.CloseFiles()
	conn.SetDeadline(time.Now().Add(helloWait))
	if err := conn.Send(controlstream.FromPod{Hello: &hello}); err != nil {
		return err
	}
	var first controlstream.ToPod
	if err := conn.Receive(&first); err != nil {
		return fmt.Errorf("its welcome: %w", err)
	}
	switch {
	case first.Failed != nil:
		return fmt.Errorf("it refuses this pod: %s", first.Failed.Message)
	case first.Welcome == nil:
		return errors.New("it does not begin with a welcome")
	}
	conn.SetDeadline(time.Time{})
	conn.WriteWait = writeWait
	welcomed()
	l.onWelcome(*first.Welcome)

	done := make(chan struct{})
	var writers sync.WaitGroup
	writers.Go(func() {
		defer conn.Close()
		l.writeMessages(conn, done)
	})
	defer writers.Wait()
	defer close(done)
	for {
		var m controlstream.ToPod
		if err := conn.Receive(&m); err != nil {
			return err
		}
		var open *os.File
		if m.Staged != nil && m.Staged.Folder {
			if open, err = conn.File(); err != nil {
				return err
			}
		}
		l.onLine(m, first.Welcome.Store, open)
	}
}

// onWelcome begins a connection: all requests and the status are sent again.
func (l *loaderClient) onWelcome(w controlstream.Welcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log.Info("the node's loader answers", "node", w.Node, "pod", w.UID, "after", time.Since(l.down).Round(time.Millisecond))
	l.node, l.down, l.failure = w.Node, time.Time{}, nil
	for _, a := range l.requests {
		a.sent, a.held = false, false
		if a.verification != nil {
			a.verification.sent = false
		}
	}
	l.sentCount = 0
	l.wake.Set()
}

// writeMessages sends what is new until the connection ends.
func (l *loaderClient) writeMessages(conn *jsonsocket.Conn, done <-chan struct{}) {
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for again := false; ; {
		lines, version := l.pendingMessages(again)
		for _, m := range lines {
			if err := conn.Send(m); err != nil {
				return
			}
		}
		l.markSent(version)
		again = false
		select {
		case <-l.wake:
		case <-tick.C:
			again = true
		case <-done:
			return
		}
	}
}

// pendingMessages is what has not been said; again says the status also where it has been.
func (l *loaderClient) pendingMessages(again bool) (lines []controlstream.FromPod, version uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(l.requests)) {
		if a := l.requests[id]; !a.sent {
			a.sent = true
			s := a.Stage
			lines = append(lines, controlstream.FromPod{Stage: &s})
		} else if v := a.verification; v != nil && a.held && !v.sent {
			v.sent = true
			lines = append(lines, controlstream.FromPod{Verify: &controlstream.Verify{ID: a.ID, Digest: a.Digest}})
		}
	}
	if l.status != nil && (again || l.sentCount < l.statusCount) {
		s := *l.status
		lines = append(lines, controlstream.FromPod{Status: &s})
	}
	return lines, l.statusCount
}

func (l *loaderClient) markSent(version uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sentCount < version {
		l.sentCount = version
		close(l.sentChanged)
		l.sentChanged = make(chan struct{})
	}
}

// onLine takes one line. store is what the loader calls its folder; open, which it takes
// over, what came with the line.
func (l *loaderClient) onLine(m controlstream.ToPod, store string, open *os.File) {
	if m.Stop != nil {
		l.stop(*m.Stop)
	}
	defer func() {
		if open != nil {
			open.Close()
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case m.Staging != nil:
		if a := l.requests[m.Staging.ID]; a != nil && !a.delivered && a.progress != nil {
			a.progress(functions.Bytes(m.Staging.Done), functions.Bytes(m.Staging.Total))
			if a.problem != nil {
				a.problem(m.Staging.Note)
			}
		}
	case m.Staged != nil:
		a := l.requests[m.Staged.ID]
		if a == nil {
			return // let go meanwhile
		}
		a.held = true
		l.wake.Set() // for its verification
		if a.delivered {
			if m.Staged.Digest != a.Digest {
				l.log.Warn("the loader holds other weights than those in use", "source", a.Source, "digest", m.Staged.Digest)
			}
			return
		}
		var path string
		var err error
		if open != nil {
			a.folder, err = newOpenFolder(filepath.Join(l.weights, strconv.Itoa(a.ID)), open, m.Staged.Files)
			if open = nil; err == nil {
				path = a.folder.path()
			}
		} else {
			path, err = l.podPath(m.Staged.Path, store)
		}
		a.delivered = err == nil
		// From now on these very bytes.
		a.Digest = cmp.Or(a.Digest, m.Staged.Digest)
		m.Staged.Path = path
		a.finishLocked(stagingResult{Staged: *m.Staged, err: err})
	case m.Verified != nil:
		if a := l.requests[m.Verified.ID]; a != nil {
			a.finishVerificationLocked(*m.Verified)
		}
	case m.Failed != nil:
		a := l.requests[m.Failed.ID]
		switch f := m.Failed; {
		case a == nil:
		case a.delivered:
			// Its files are open; what the loader removes is gone when we are.
			l.log.Warn("the loader does not hold the weights in use", "source", a.Source, "kind", f.Kind, "error", f.Message)
			if f.Kind != controlstream.KindEnding {
				a.finishVerificationLocked(controlstream.Verified{Error: f.Message})
			}
		case f.Kind == controlstream.KindEnding:
			l.log.Warn("the loader ends; asking the next one", "source", a.Source)
		default:
			a.finishLocked(stagingResult{err: f})
		}
	}
}

// podPath is where the pod sees a path of the loader's.
func (l *loaderClient) podPath(path, store string) (string, error) {
	rel, err := filepath.Rel(store, path)
	if err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("the loader says that the weights are in %s, which is not in its store %s", path, store)
	}
	return filepath.Join(l.store, rel), nil
}

// Stage is the replica's Stager.
func (l *loaderClient) Stage(ctx context.Context, req replica.StageRequest, progress func(have, total functions.Bytes)) (replica.Checkpoint,
	error) {
	a := &stagingRequest{Stage: controlstream.Stage{Source: req.Source, Files: req.Files, Digest: req.Digest}, progress: progress,
		problem: req.Problem, answer: make(chan stagingResult, 1)}
	l.mu.Lock()
	l.last++
	a.ID = l.last
	if err := a.Check(); err != nil {
		l.mu.Unlock()
		return replica.Checkpoint{}, err
	}
	l.requests[a.ID] = a
	if !l.down.IsZero() && l.failure != nil {
		l.log.Error("the node's loader does not answer, and the weights come from it", "socket", l.socket, "error", l.failure, "giving up after",
			l.loaderTimeout)
	}
	l.wake.Set()
	l.mu.Unlock()
	release := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.requests, a.ID)
		if a.folder != nil {
			a.folder.close()
			a.folder = nil
		}
	}
	select {
	case x := <-a.answer:
		if x.err != nil {
			release()
			return replica.Checkpoint{}, x.err
		}
		return replica.Checkpoint{Path: x.Path, Bytes: functions.Bytes(x.Bytes), Digest: x.Digest, Cache: l.cache, Release: release,
			Verify: func(ctx context.Context) error { return l.verify(ctx, a) }}, nil
	case <-ctx.Done():
		release()
		return replica.Checkpoint{}, context.Cause(ctx)
	}
}

// verify has the loader read a held checkpoint again. The error is replica.ErrDamaged if the
// loader has removed it. If the loader ends meanwhile the next one is asked.
func (l *loaderClient) verify(ctx context.Context, a *stagingRequest) error {
	v := &verification{answer: make(chan controlstream.Verified, 1)}
	l.mu.Lock()
	a.verification = v
	l.wake.Set()
	l.mu.Unlock()
	select {
	case x := <-v.answer:
		switch {
		case x.Damaged:
			return fmt.Errorf("%w: %s", replica.ErrDamaged, x.Error)
		case x.Error != "":
			return errors.New(x.Error)
		}
		return nil
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		if a.verification == v {
			a.verification = nil
		}
		return context.Cause(ctx)
	}
}

// SendStatus has a status sent; only the newest is.
func (l *loaderClient) SendStatus(s functions.ReplicaStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status = &s
	l.statusCount++
	l.wake.Set()
}

// FlushStatus waits until the newest status has been sent, at most flushWait.
func (l *loaderClient) FlushStatus(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushWait)
	defer cancel()
	for {
		l.mu.Lock()
		done, sentChanged := l.sentCount >= l.statusCount || !l.down.IsZero(), l.sentChanged
		l.mu.Unlock()
		if done {
			return
		}
		select {
		case <-sentChanged:
		case <-ctx.Done():
			return
		}
	}
}

// allSent reports whether a connected loader has the newest status.
func (l *loaderClient) allSent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down.IsZero() && l.sentCount >= l.statusCount
}

// Node is the name of the node, "" before the first loader's welcome.
func (l *loaderClient) Node() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.node
}

// disconnectError is ErrNoLoader if a staging was given up for want of a loader.
func (l *loaderClient) disconnectError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gaveUp {
		return ErrNoLoader
	}
	return nil
}
