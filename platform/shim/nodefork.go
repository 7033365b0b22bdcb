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

// nodeAnswerTimeout bounds the answer of a node's interpreter: a fork and a look at it.
const nodeAnswerTimeout = 10 * time.Second

// nodeForkServer is the interpreter of the node, which forks engines into the pods that ask
// (runtime/forkserver/pods). It is asked what it is when the pod begins: by then it is known
// whether this pod is one that it forks into, and what the engine would be forked
// from. Where it is not, an interpreter of the pod's own is made, as without one.
type nodeForkServer struct {
	socket  string
	own     *ownForkServer // nil where the engine has none
	settled chan struct{}

	used atomic.Bool // the engine was forked from it

	mu    sync.Mutex
	facts *forkserver.Facts
	why   string // it forks nothing here
}

// findNodeForkServer looks whether the node lends one; nil if it does not.
func findNodeForkServer(o Options) *nodeForkServer {
	if forkserver.ImportList(string(o.Model.Spec.Engine)) == "" || !forkserver.Supported || o.Store == "" || o.NoImports || o.NoNodeFork {
		return nil
	}
	socket := forkserver.HostSocket(o.Store)
	if st, err := os.Lstat(socket); err != nil || st.Mode().Type() != os.ModeSocket || !ownedByRoot(filepath.Dir(socket)) || !ownedByRoot(socket) {
		return nil
	}
	return &nodeForkServer{socket: socket, settled: make(chan struct{})}
}

// run asks the node's interpreter, and where it is none for this pod runs what
// makes one here.
func (l *nodeForkServer) run(ctx context.Context, o Options, cmd engine.Command, otherwise func(context.Context)) {
	asked, cancel := context.WithTimeout(ctx, nodeAnswerTimeout)
	began := time.Now()
	f, err := forkserver.AskFacts(asked, l.socket)
	cancel()
	why := ""
	if err != nil {
		why = "the node's interpreter: " + err.Error()
	} else if name := f.DifferingVariable(cmd.Env); name != "" {
		why = "the node's interpreter was started with another " + name
	} else if f.Program != cmd.Argv[0] {
		why = "the node's interpreter is of another program, " + f.Program
	}
	l.mu.Lock()
	if l.why = why; why == "" {
		l.facts = &f
	}
	l.mu.Unlock()
	if why == "" {
		o.Log.Info("the node lends an interpreter", "version", f.Version, "python", f.Python, "after", time.Since(began).Round(time.Millisecond))
		close(l.settled)
		return
	}
	o.Log.Warn("the node's interpreter is not for this pod", "why", why)
	if l.own == nil || ctx.Err() != nil {
		close(l.settled)
		return
	}
	// Who waits for a parent waits for that one now.
	var beside sync.WaitGroup
	beside.Go(func() {
		select {
		case <-l.own.settled:
		case <-ctx.Done():
		}
		close(l.settled)
	})
	otherwise(ctx)
	beside.Wait()
}

// Via is where the engine is forked from, or why it is not.
func (l *nodeForkServer) Via(cmd engine.Command) (via, note string) {
	l.mu.Lock()
	f, why := l.facts, l.why
	l.mu.Unlock()
	if f != nil {
		if name := f.DifferingVariable(cmd.Env); name != "" {
			return "", "the node's interpreter was started with another " + name
		}
		l.used.Store(true)
		return l.socket, ""
	}
	if why == "" {
		return "", "the node's interpreter has not answered"
	}
	if l.own == nil {
		return "", why
	}
	if via, note = l.own.Via(cmd); via == "" {
		why += "; " + note
	}
	return via, why
}

// adjustStatus tells a start of an interpreter of the pod's own as a plain one, and why it
// was not the node's.
func (l *nodeForkServer) adjustStatus(st functions.ReplicaStatus) functions.ReplicaStatus {
	if l.used.Load() {
		return st
	}
	if st = asPlainStart(st); st.StartNote == ownForkNote {
		l.mu.Lock()
		st.StartNote = l.why + "; " + ownForkNote
		l.mu.Unlock()
	}
	return st
}
