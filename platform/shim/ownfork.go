package shim

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/forkserver"
	"github.com/thaw-dev/thaw/runtime/replica"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

const (
	parentID      = "imports"       // of its process
	importTimeout = 2 * time.Minute // for its imports
	answerTimeout = time.Second     // for an answer
	ownForkNote   = "forked from an interpreter of this pod's own, which had imported the engine while its weights came"
)

// ownForkServer is an interpreter of this pod alone: it imports the engine while the
// weights arrive, and both of the engine's processes are forked from it. So a start takes
// the longer of the two and not their sum, and imports once what a plain start imports
// twice. It ends when it has forked one engine.
//
// It has the container, user and model of the engine that it forks: nothing is shared with
// other pods.
type ownForkServer struct {
	spawner replica.Spawner
	socket  string
	log     *slog.Logger
	ready   chan struct{}   // closed when it is ready or has failed
	done    context.Context // ends with end
	end     context.CancelFunc

	mu      sync.Mutex
	facts   *forkserver.Facts // nil: it is not ready
	failure string            // it has failed
}

// newOwnForkServer makes the interpreter for a model's engine; nil if its engine cannot be
// forked. cmd is the engine's command, with a path that does not matter.
func newOwnForkServer(o Options, spawner replica.Spawner, programs engine.Programs) (*ownForkServer, engine.Command,
	func(ctx context.Context)) {
	m := o.Model
	row := forkserver.ImportList(string(m.Spec.Engine))
	if row == "" || !forkserver.Supported || o.NoImports {
		return nil, engine.Command{}, nil
	}
	dir := filepath.Join(o.Dir, "imports")
	cmd, err := programs.Prepare(engine.Request{Spec: m.Spec, Name: m.Metadata.Name, Path: "/", Port: 1, Key: "any", Scratch: dir})
	if err != nil {
		return nil, engine.Command{}, nil // the replica reports it
	}
	a := &ownForkServer{spawner: spawner, socket: filepath.Join(dir, "s"), log: o.Log, ready: make(chan struct{})}
	a.done, a.end = context.WithCancel(context.Background())
	return a, cmd, func(ctx context.Context) {
		if err := a.serve(ctx, cmd, row, dir); err != nil && ctx.Err() == nil {
			a.log.Warn("no fork server in this pod; the engine is started plainly", "why", err)
		}
	}
}

// serve starts the interpreter, and ends it when it has forked or cannot be used.
func (s *ownForkServer) serve(ctx context.Context, cmd engine.Command, row, dir string) (err error) {
	began := time.Now()
	var child *supervisor.Child
	defer func() {
		s.mu.Lock()
		s.facts = nil
		if err != nil {
			s.failure = "no interpreter of its own: " + err.Error()
		}
		s.mu.Unlock()
		select {
		case <-s.ready:
		default:
			close(s.ready)
		}
		if child != nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
			defer cancel()
			s.spawner.Signal(last, parentID, syscall.SIGKILL)
		}
	}()
	env, err := forkserver.FindEnvironment(cmd.Argv[0])
	if err != nil {
		return err
	}
	script, err := forkserver.InstallScript(dir)
	if err != nil {
		return err
	}
	child, err = s.spawner.Spawn(ctx,
		supervisor.Process{ID: parentID, Argv: env.ParentArgv(script, s.socket, row), Env: forkserver.ParentEnviron(engine.Environ(cmd.Env)),
			Dir: dir})
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeoutCause(ctx, importTimeout, fmt.Errorf("it has not imported within %s", importTimeout))
	defer cancel()
	defer context.AfterFunc(s.done, cancel)()
	p := forkserver.NewParent(forkserver.ParentOptions{Env: env, Facts: forkserver.SocketFacts(s.socket)})
	exit, err := forkserver.Await(waiting, p, child.Exited)
	switch {
	case exit != nil:
		child = nil
		return fmt.Errorf("it ended: %s", engine.RootCause(exit.Tail, exit.String()))
	case s.done.Err() != nil:
		return nil // the engine was started without it
	case err != nil:
		return err
	}
	f, _ := p.Facts()
	s.mu.Lock()
	s.facts = &f
	s.mu.Unlock()
	s.log.Info("the engine's imports are done", "after", time.Since(began).Round(time.Millisecond), "version", f.Version, "python", f.Python)
	close(s.ready)
	select {
	case <-s.done.Done():
	case <-child.Exited:
		child = nil
	case <-ctx.Done():
	}
	return nil
}

// ForkSocket is the socket that the engine is forked from, or "" and why there is none.
func (s *ownForkServer) ForkSocket(cmd engine.Command) (forkSocket, note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.facts == nil {
		if s.failure == "" {
			return "", "the interpreter of its own was not ready"
		}
		return "", s.failure
	}
	if name := s.facts.DifferingVariable(cmd.Env); name != "" {
		return "", "the interpreter of its own was started with another " + name
	}
	return s.socket, ""
}

// endingSpawner ends the interpreter when an engine has been started, forked or not: its
// imports take memory that the engine needs.
type endingSpawner struct {
	replica.Spawner
	a *ownForkServer
}

func (s endingSpawner) Spawn(ctx context.Context, p supervisor.Process) (*supervisor.Child, error) {
	child, err := s.Spawner.Spawn(ctx, p)
	if err == nil {
		s.a.end()
	}
	return child, err
}

// asPlainStart reports a fork from the pod's own interpreter as a plain start: no
// interpreter was warm when the pod began.
func asPlainStart(st functions.ReplicaStatus) functions.ReplicaStatus {
	if st.Start == functions.StartWarm {
		st.Start, st.StartNote = functions.StartPlain, ownForkNote
	}
	return st
}
