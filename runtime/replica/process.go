package replica

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
	"github.com/thaw-dev/thaw/runtime/tail"
)

const (
	// followEvery is how often the log of a starting engine is read.
	followEvery = 20 * time.Millisecond
	// followLine is the length at which a line is cut.
	followLine = 16 << 10
	// tailBytes of a start's log are searched for the root cause.
	tailBytes = 128 << 10
	// failedStartWait is the time an engine with a failed start has to exit.
	failedStartWait = 500 * time.Millisecond
)

// process is the engine's process, which the supervisor runs. It is owned by Run's
// goroutine; logPath may be called from any.
type process struct {
	id         string // of the replica
	spawner    Spawner
	forkParent func(engine.Command) (forkSocket, note string) // Options.ForkParent
	log        *slog.Logger

	child   *supervisor.Child // nil: there is none
	output  atomic.Pointer[string]
	logFrom int64 // offset of this start in the log
}

// logPath is the file of the engine's output; "" before its start.
func (p *process) logPath() string {
	if path := p.output.Load(); path != nil {
		return *path
	}
	return ""
}

// attach makes a running process that of the replica.
func (p *process) attach(child *supervisor.Child) {
	p.child = child
	p.output.Store(&child.Log)
}

// spawn starts the process, forked from a warm interpreter if there is one. It returns how.
func (p *process) spawn(ctx context.Context, cmd engine.Command, plan *confine.Plan, meta Meta) (start, note string, err error) {
	p.logFrom = 0
	if st, err := os.Stat(p.logPath()); err == nil { // of an earlier try
		p.logFrom = st.Size()
	}
	forkSocket := ""
	if p.forkParent != nil {
		forkSocket, note = p.forkParent(cmd)
	}
	for {
		meta.Start, meta.Note = functions.StartPlain, note
		if forkSocket != "" {
			meta.Start, meta.Note = functions.StartWarm, ""
		}
		b, err := json.Marshal(meta)
		if err != nil {
			return "", "", err
		}
		sctx, cancel := context.WithTimeout(ctx, spawnWait)
		child, err := p.spawner.Spawn(sctx, supervisor.Process{
			ID: p.id, Argv: cmd.Argv, Env: cmd.Env, Dir: cmd.Dir, Meta: b, ForkSocket: forkSocket,
			Scratch: cmd.Scratch, ScratchFiles: cmd.ScratchFiles, Confine: plan,
		})
		cancel()
		switch {
		case err == nil:
			p.attach(child)
			return meta.Start, meta.Note, nil
		case forkSocket == "" || !errors.Is(err, supervisor.ErrNoParent):
			return "", "", err
		}
		forkSocket, note = "", err.Error()
	}
}

// terminate sends SIGTERM to the group, and SIGKILL after termGrace.
func (p *process) terminate(ctx context.Context) {
	p.signal(ctx, syscall.SIGTERM)
	if _, ok := p.waitExit(termGrace); ok {
		p.forget(ctx)
	} else {
		p.kill(ctx)
	}
}

// kill sends SIGKILL to the group and returns its exit, if it is reported in time.
func (p *process) kill(ctx context.Context) supervisor.Exit {
	p.signal(ctx, syscall.SIGKILL)
	x, ok := p.waitExit(killWait)
	if !ok {
		p.log.Error("a killed engine does not exit", "pid", p.child.PID)
	}
	p.forget(ctx)
	return x
}

func (p *process) waitExit(within time.Duration) (supervisor.Exit, bool) {
	select {
	case x := <-p.child.Exited:
		return x, true
	case <-time.After(within):
		return supervisor.Exit{}, false
	}
}

// signal sends a signal even if ctx has ended.
func (p *process) signal(ctx context.Context, sig syscall.Signal) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := p.spawner.Signal(ctx, p.id, sig); err != nil {
		p.log.Error("signal", "signal", sig, "error", err)
	}
}

// forget drops the process, which has ended or does not react to SIGKILL.
func (p *process) forget(ctx context.Context) {
	p.child = nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := p.spawner.Forget(ctx, p.id); err != nil && !errors.Is(err, supervisor.ErrLost) {
		p.log.Debug("forget", "error", err)
	}
}

// tail is the end of this start's log: longer than the part in the exit, since the
// tracebacks of several processes are long.
func (p *process) tail(x supervisor.Exit) string {
	f, err := os.Open(p.logPath())
	if err != nil {
		return x.Tail
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return x.Tail
	}
	from := max(p.logFrom, st.Size()-tailBytes)
	b := make([]byte, max(st.Size()-from, 0))
	n, _ := f.ReadAt(b, from)
	if n < len(x.Tail) {
		return x.Tail
	}
	return string(b[:n])
}

// line of a log, and when it was read.
type line struct {
	text string
	at   time.Time
}

// followLog sends the lines that are written to a log from offset on, until ctx
// ends. Without a log the endpoints of the engine are enough.
func followLog(ctx context.Context, path string, offset int64, out chan<- line) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	f := tail.New(tail.Options{Path: func() string { return path }, File: file, Every: followEvery, Stop: ctx.Done()})
	defer f.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return
	}
	tail.Lines(f, followLine, func(text string) bool {
		select {
		case out <- line{text, time.Now()}:
			return true
		case <-ctx.Done():
			return false
		}
	})
}
