package shim

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/forkserver"
)

// nodeAnswerTimeout bounds the answer of the node's interpreter, which is a fork and its
// inspection.
const nodeAnswerTimeout = 10 * time.Second

// nodeForkServer is the interpreter of the node, which forks engines into the pods that
// connect (runtime/forkserver/pods). Its facts are requested when the pod begins, so that
// it is known early whether it forks into this pod. If it does not, the pod starts an
// interpreter of its own.
type nodeForkServer struct {
	socket string
	own    *ownForkServer // nil where the engine has none
	ready  chan struct{}

	used atomic.Bool // the engine was forked from it

	mu      sync.Mutex
	facts   *forkserver.Facts
	failure string // it does not fork into this pod
}

// findNodeForkServer is the node's interpreter, if it has one; nil otherwise.
func findNodeForkServer(o Options) *nodeForkServer {
	if forkserver.ImportList(string(o.Model.Spec.Engine)) == "" || !forkserver.Supported || o.Sockets == "" || o.NoImports || o.NoNodeFork {
		return nil
	}
	socket := forkserver.HostSocket(o.Sockets)
	if st, err := os.Lstat(socket); err != nil || st.Mode().Type() != os.ModeSocket || !ownedByRoot(filepath.Dir(socket)) ||
		!ownedByRoot(socket) {
		return nil
	}
	return &nodeForkServer{socket: socket, ready: make(chan struct{})}
}

// run requests the facts of the node's interpreter. If that cannot fork this pod's engine
// it runs otherwise, which starts the pod's own.
func (s *nodeForkServer) run(ctx context.Context, o Options, cmd engine.Command, otherwise func(context.Context)) {
	answerCtx, cancel := context.WithTimeout(ctx, nodeAnswerTimeout)
	began := time.Now()
	f, err := forkserver.AskFacts(answerCtx, s.socket)
	cancel()
	reason := ""
	if err != nil {
		reason = "the node's interpreter: " + err.Error()
	} else if name := f.DifferingVariable(cmd.Env); name != "" {
		reason = "the node's interpreter was started with another " + name
	} else if f.Program != cmd.Argv[0] {
		reason = "the node's interpreter is of another program, " + f.Program
	}
	s.mu.Lock()
	if s.failure = reason; reason == "" {
		s.facts = &f
	}
	s.mu.Unlock()
	if reason == "" {
		o.Log.Info("the node has a warm interpreter", "version", f.Version, "python", f.Python, "after",
			time.Since(began).Round(time.Millisecond))
		close(s.ready)
		return
	}
	o.Log.Warn("the node's interpreter cannot fork this pod's engine", "why", reason)
	if s.own == nil || ctx.Err() != nil {
		close(s.ready)
		return
	}
	// Starts that wait for the node's interpreter wait for the pod's own now.
	var background sync.WaitGroup
	background.Go(func() {
		select {
		case <-s.own.ready:
		case <-ctx.Done():
		}
		close(s.ready)
	})
	otherwise(ctx)
	background.Wait()
}

// ForkSocket is the socket that the engine is forked from, or "" and why there is none.
func (s *nodeForkServer) ForkSocket(cmd engine.Command) (forkSocket, note string) {
	s.mu.Lock()
	f, reason := s.facts, s.failure
	s.mu.Unlock()
	if f != nil {
		if name := f.DifferingVariable(cmd.Env); name != "" {
			return "", "the node's interpreter was started with another " + name
		}
		s.used.Store(true)
		return s.socket, ""
	}
	if reason == "" {
		return "", "the node's interpreter has not answered"
	}
	if s.own == nil {
		return "", reason
	}
	if forkSocket, note = s.own.ForkSocket(cmd); forkSocket == "" {
		reason += "; " + note
	}
	return forkSocket, reason
}

// adjustStatus reports a fork from the pod's own interpreter as a plain start, and why it
// was not the node's.
func (s *nodeForkServer) adjustStatus(st functions.ReplicaStatus) functions.ReplicaStatus {
	if s.used.Load() {
		return st
	}
	if st = asPlainStart(st); st.StartNote == ownForkNote {
		s.mu.Lock()
		st.StartNote = s.failure + "; " + ownForkNote
		s.mu.Unlock()
	}
	return st
}
