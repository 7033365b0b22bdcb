package shim

import (
	"cmp"
	"context"
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
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/enginehttp"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/replica"
	"github.com/thaw-dev/thaw/runtime/supervisor"
	"github.com/thaw-dev/thaw/runtime/tail"
)

type Options struct {
	Model         *functions.Model
	Listener      net.Listener // where it answers; Run closes it
	IP            string       // of the pod, see Address
	Port          int          // of the listener, as others reach it
	Sockets       string       // the folder of the node's sockets, as mounted in the pod
	Dir           string       // a folder of the shim's own; Run empties it, and removes it
	Caches        string       // a folder for what engines compile, which is left; "" is the engine's own choice
	Exe           string       // the thaw program, which is ember
	Version       string
	Environ       []string      // of the container; engines inherit what is no secret of it and not the shim's
	LoaderTimeout time.Duration // for a loader that does not answer; 0 is DefaultLoaderTimeout
	Out           io.Writer     // gets the engine's log
	Log           *slog.Logger

	// NoImports starts engines plainly, after their weights have arrived: no
	// interpreter of the pod's own, and none of the node's.
	NoImports bool
	// NoNodeFork does not fork them from the node's interpreter.
	NoNodeFork bool
	// RefuseVulnerable refuses an engine below the version that fixes a known vulnerability.
	RefuseVulnerable bool
}

const (
	// shutdownDelay is how long a stopped shim waits for the end of its container.
	shutdownDelay = time.Minute

	// failureDelay is how long one that failed waits to be told what its loader has
	// passed on: a controller decides in a second, one that has just begun in ten.
	failureDelay = 15 * time.Second

	supervisorWait = 10 * time.Second
	endGrace       = 2 * time.Second // between SIGTERM and SIGKILL of what is left
	serverGrace    = 2 * time.Second // for answers to be written out at the end
	logGrace       = 2 * time.Second // for the end of the engine's log to be written out

	// maxWaiting bounds the requests that wait here for READY: two activators' first.
	maxWaiting = 16

	// maxBodies bounds the memory of all requests that pass: the shim has 64 MiB
	// beside its engine.
	maxBodies = enginehttp.MaxBody
)

// Failed is the end of a replica that failed, with its first cause in one line.
type Failed struct {
	Cause string
	err   error // ErrNoLoader, or nil
}

func (f *Failed) Error() string { return f.Cause }
func (f *Failed) Unwrap() error { return f.err }

// Decode reads a model file as a pod has it: one model. The error names the
// variable.
func Decode(text string) (*functions.Model, error) {
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("THAW_MODEL is empty: it is the model file, as YAML")
	}
	docs, err := catalog.DecodeTenant("THAW_MODEL", []byte(text))
	switch {
	case err != nil:
		return nil, err
	case len(docs) != 1 || docs[0].Model == nil:
		return nil, errors.New("THAW_MODEL: one document of kind Model is wanted")
	}
	m := docs[0].Model
	m.Dir, m.Origin = "", ""
	return m, nil
}

// Shim is the first process of a model's pod.
type Shim struct {
	o          Options
	log        *slog.Logger
	began      time.Time
	rep        *replica.Replica
	loader     *loaderClient
	nodeServer *nodeForkServer // nil: the node has none
	engines    *upstream.Client

	inFlight atomic.Int64
	draining atomic.Bool  // no new requests are wanted
	readyAt  atomic.Int64 // unix nanoseconds, 0 not yet
	first    firstRequest
	errors   functions.ErrorRun
	stopped  chan controlstream.Drain

	waiting atomic.Int64  // requests that wait here for READY
	decided chan struct{} // closed once the replica is READY, or will not be
	decide  func()
}

// New makes a shim; nothing happens before Run.
func New(o Options) *Shim {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Out = cmp.Or(o.Out, io.Discard)
	o.LoaderTimeout = cmp.Or(max(o.LoaderTimeout, 0), DefaultLoaderTimeout)
	s := &Shim{o: o, log: o.Log, began: time.Now(), engines: upstream.New(upstream.Options{}), stopped: make(chan controlstream.Drain, 1),
		decided: make(chan struct{})}
	s.decide = sync.OnceFunc(func() { close(s.decided) })
	s.loader = newLoaderClient(o, func(d controlstream.Drain) {
		select {
		case s.stopped <- d:
		default: // one is on its way
		}
	})
	return s
}

// Run is the shim's life. ctx ending is SIGTERM: what is in flight may finish, the
// engine ends, and Run returns nil. So it does after the loader's stop. The error
// is *Failed where the replica failed, with ErrNoLoader in it where that was why.
// It must have the process to itself: see supervisor.Run. It is called once.
func (s *Shim) Run(ctx context.Context) error {
	// The parts beside the replica end after it.
	shimCtx, end := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	defer background.Wait()
	defer end()
	if err := os.RemoveAll(s.o.Dir); err != nil { // of a container before this one
		return err
	}
	defer os.RemoveAll(s.o.Dir)
	supervisorClient, err := s.startSupervisor(shimCtx, &background)
	if err != nil {
		return err
	}
	defer s.endSupervisor(context.WithoutCancel(ctx), supervisorClient)
	options, importing := s.options(supervisorClient)
	s.rep = replica.New(options)
	if importing != nil {
		background.Go(func() { importing(shimCtx) })
	}

	srv := s.newServer()
	served := make(chan error, 1)
	background.Go(func() { served <- srv.Serve(s.o.Listener) })
	defer s.engines.Close()
	defer func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverGrace)
		defer cancel()
		srv.Shutdown(grace)
	}()
	background.Go(func() { s.loader.Run(shimCtx) })
	ended := make(chan struct{})
	background.Go(func() {
		defer close(ended)
		s.rep.Run(shimCtx)
	})
	awaitLog := s.startLog(ended)
	drain := s.o.Model.Spec.Deadlines.Drain.Std()
	stopped := false
	for done := false; !done; {
		select {
		case <-ctx.Done():
			ctx = context.WithoutCancel(ctx)
			s.log.Info("SIGTERM: draining", "in flight", s.inFlight.Load(), "drain", drain)
			s.drain(drain, "the pod ends")
		case d := <-s.stopped:
			stopped = true
			within := time.Duration(max(0, min(d.Seconds, 86400)) * float64(time.Second))
			s.log.Info("stopped by the node's loader", "why", d.Reason, "in flight", s.inFlight.Load(), "drain", within)
			s.drain(within, d.Reason)
		case err := <-served:
			s.drain(0, "the port cannot be served")
			<-ended
			return fmt.Errorf("port %d: %w", s.o.Port, cmp.Or(err, net.ErrClosed))
		case <-ended:
			done = true
		}
	}
	awaitLog()
	st := s.rep.Status()
	s.loader.FlushStatus(ctx)
	failed := st.State == functions.Failed
	if stopped || failed && s.loader.allSent() {
		s.awaitTermination(ctx, stopped)
	}
	if failed {
		return &Failed{st.Error, s.loader.disconnectError()}
	}
	return nil
}

func (s *Shim) newServer() httpserver.Server {
	return httpserver.NewFiberServer(httpserver.Options{Handler: s.serve, MaxBody: enginehttp.MaxBody,
		Bodies: httpserver.NewBudget(maxBodies, maxBodies), Logger: s.log})
}

// startLog copies the engine's log to the container's output until ended is closed. The
// function that it returns waits for the rest of the log, for a bounded time: the output
// may never be read.
func (s *Shim) startLog(ended <-chan struct{}) (await func()) {
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		copyLog(ended, s.rep.LogPath, s.o.Out)
	}()
	return func() {
		select {
		case <-logged:
		case <-time.After(logGrace):
			s.log.Warn("the container's output is not read; the end of the engine's log is missing there")
		}
	}
}

// awaitTermination waits for SIGTERM, for a bounded time. The controller knows of the
// replica's end and deletes the pod: if this process ended first, Kubernetes would restart
// the container at once. Without a controller that restart is the only recovery.
func (s *Shim) awaitTermination(ctx context.Context, stopped bool) {
	if ctx.Done() == nil {
		return // it has come already
	}
	delay := shutdownDelay
	if !stopped {
		delay = failureDelay
	}
	backoff.Sleep(ctx, delay)
}

// endSupervisor ends the processes that the engine left.
func (s *Shim) endSupervisor(ctx context.Context, supervisorClient *supervisor.Client) {
	ctx, cancel := context.WithTimeout(ctx, supervisorWait)
	defer cancel()
	if err := supervisorClient.End(ctx, endGrace); err != nil && !errors.Is(err, supervisor.ErrLost) {
		s.log.Error("processes of the engine cannot be ended", "error", err)
	}
	supervisorClient.Close()
}

// drain refuses new requests and ends the replica.
func (s *Shim) drain(within time.Duration, reason string) {
	s.draining.Store(true)
	s.decide()
	s.rep.Unload(within, reason)
}

// startSupervisor runs the supervisor in this process and connects to it.
func (s *Shim) startSupervisor(shimCtx context.Context, background *sync.WaitGroup) (*supervisor.Client, error) {
	dir := filepath.Join(s.o.Dir, "supervisor")
	socket := filepath.Join(dir, "supervisor.sock")
	failed := make(chan error, 1)
	background.Go(func() {
		failed <- supervisor.Run(shimCtx, supervisor.Options{Socket: socket, Dir: dir, Orphan: supervisorWait, Log: s.log})
	})
	ctx, cancel := context.WithTimeout(shimCtx, supervisorWait)
	defer cancel()
	for {
		c, err := supervisor.Connect(ctx, socket)
		if err == nil {
			return c, nil
		}
		select {
		case err := <-failed:
			return nil, err
		case <-ctx.Done():
			return nil, err
		case <-time.After(time.Millisecond):
		}
	}
}

// options of the replica, and the function that runs its fork server, or nil.
func (s *Shim) options(supervisorClient *supervisor.Client) (replica.Options, func(context.Context)) {
	m := s.o.Model
	environ := InheritedVariables(s.o.Environ)
	cache, err := seedCaches(s.o.Caches, m.Spec.Engine, environ)
	if err != nil {
		s.log.Warn("the image's engine caches are not copied", "error", err)
	}
	s.loader.cache = cache
	o := replica.Options{
		// There is one, and Kubernetes has the name of the pod.
		Assignment: replica.Assignment{ID: "model", Team: m.Metadata.Namespace, Model: m.Metadata.Name, Spec: m.Spec},
		Stager:     s.loader, Spawner: supervisorClient,
		Programs: engine.Programs{Thaw: s.o.Exe, Environ: func() []string { return environ }, RefuseVulnerable: s.o.RefuseVulnerable},
		Began:    s.began, OnChange: s.onChange, Log: s.log,
		InFlight: func() int { return int(s.inFlight.Load()) },
		Scratch:  supervisor.ScratchRoot(filepath.Join(s.o.Dir, "supervisor")),
	}
	// The container has the GPUs it was given and no others.
	for i := range m.Spec.Resources.GPUs {
		o.GPUs = append(o.GPUs, i)
	}
	o.AbortRequests = func(url, _ string) { s.engines.AbortThrough(url) }
	o.Traffic = s.engines.Traffic
	a, cmd, run := newOwnForkServer(s.o, supervisorClient, o.Programs)
	if a != nil {
		o.Spawner, o.ForkParent = endingSpawner{supervisorClient, a}, a.ForkSocket
		o.ParentReady = func(engine.Command) <-chan struct{} { return a.ready }
		if l := findNodeForkServer(s.o); l != nil {
			s.nodeServer, l.own = l, a
			o.ForkParent = l.ForkSocket
			o.ParentReady = func(engine.Command) <-chan struct{} { return l.ready }
			own := run
			run = func(ctx context.Context) { l.run(ctx, s.o, cmd, own) }
		}
	}
	return o, run
}

// InheritedVariables is the container's environment without the variables of the shim itself.
func InheritedVariables(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		return k == "PORT" || strings.HasPrefix(k, "K_")
	})
}

func (s *Shim) onChange(st functions.ReplicaStatus) {
	first := st.State == functions.Ready && s.readyAt.CompareAndSwap(0, time.Now().UnixNano())
	ahead := s.waiting.Load()
	if first || st.State.Over() { // requests that wait here go on before READY is reported
		s.decide()
	}
	s.loader.SendStatus(s.outsideStatus(st))
	if first { // after the status, which requests wait for
		s.log.Info("ready", "after", time.Since(s.began).Round(time.Millisecond), "waited here", ahead)
	}
}

// adjustStatus is a status with the start that the pod reports.
func (s *Shim) adjustStatus(st functions.ReplicaStatus) functions.ReplicaStatus {
	if s.nodeServer != nil {
		return s.nodeServer.adjustStatus(st)
	}
	return asPlainStart(st)
}

// outsideStatus is a status as the loader gets it: the endpoint is the shim's, which
// requires no key. Requests may be sent there before READY, so it has the endpoint from
// the first status on.
func (s *Shim) outsideStatus(st functions.ReplicaStatus) functions.ReplicaStatus {
	st = s.adjustStatus(st)
	st.ID, st.Key = "", ""
	if !st.State.Over() {
		st.Endpoint = fmt.Sprintf("http://%s", net.JoinHostPort(s.o.IP, fmt.Sprint(s.o.Port)))
	}
	return st
}

// copyLog copies the engine's log to out until ended is closed and all of the log
// was copied. path is the log's path, "" while there is none.
func copyLog(ended <-chan struct{}, path func() string, out io.Writer) {
	log := tail.New(tail.Options{Path: path, Ended: ended})
	defer log.Close()
	io.Copy(ignoreErrors{out}, log)
}

// ignoreErrors drops what its writer does not take: the container's output being
// closed must not stop the engine's log from being read.
type ignoreErrors struct{ io.Writer }

func (e ignoreErrors) Write(b []byte) (int, error) {
	e.Writer.Write(b)
	return len(b), nil
}
