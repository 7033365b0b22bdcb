package pods

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/runtime/forkserver"
)

type Options struct {
	Sockets string   // the node's folder that its pods mount read-only
	Argv    []string // the interpreter, without its program; see forkserver.Environment.Python
	// Program is the engine's own command, and Row what is imported of it.
	Program, Row string
	Env          []string // of the interpreter, all of it: pods can read it
	Dir          string   // a folder of its own, for its program

	// IdentifyPod names the pod of a connection by the kernel's word, or says why it is none.
	IdentifyPod func(*net.UnixConn) (pod string, err error)

	// Bounds of requests; 0 is the default.
	AtOnce  int // under way, all pods
	PerPod  int // of one pod within Within
	PerNode int // of all pods within Within
	Within  time.Duration

	Log *slog.Logger
}

// Defaults of Options. A start asks twice: what the interpreter is, and for the
// engine.
const (
	DefaultAtOnce  = 4
	DefaultPerPod  = 6
	DefaultPerNode = 32
	DefaultWithin  = 30 * time.Second
)

const (
	answerTimeout   = 5 * time.Second
	minRestartDelay = time.Second
	maxRestartDelay = 5 * time.Minute
)

// ErrUnable means that this machine or process cannot fork into pods.
var ErrUnable = errors.New("this process cannot fork engines into pods")

// Host keeps the interpreter of a node, and has it fork engines into the pods that
// connect. There is one per node.
type Host struct {
	o       Options
	log     *slog.Logger
	limiter *requestLimiter

	forked, refused atomic.Int64

	mu     sync.Mutex
	parent *parent // nil: there is none now
	slots  chan struct{}
}

// New makes a host; nothing happens before Run.
func New(o Options) *Host {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.AtOnce, o.PerPod = cmp.Or(o.AtOnce, DefaultAtOnce), cmp.Or(o.PerPod, DefaultPerPod)
	o.PerNode, o.Within = cmp.Or(o.PerNode, DefaultPerNode), cmp.Or(o.Within, DefaultWithin)
	limiter := &requestLimiter{pod: o.PerPod, all: o.PerNode, within: o.Within}
	return &Host{o: o, log: o.Log, limiter: limiter, slots: make(chan struct{}, o.AtOnce)}
}

// Ready reports whether engines can be forked now.
func (h *Host) Ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.parent != nil
}

// Counts are the forked engines and the refused requests.
func (h *Host) Counts() (forked, refused int64) { return h.forked.Load(), h.refused.Load() }

// Run keeps an interpreter until ctx ends, and starts another when it has ended. The error
// is ErrUnable if there can be none.
func (h *Host) Run(ctx context.Context) error {
	if err := checkPrivileges(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnable, err)
	}
	script, err := forkserver.InstallScript(h.o.Dir)
	if err != nil {
		return err
	}
	l, err := listenHost(h.o.Sockets)
	if err != nil {
		return err
	}
	var serving sync.WaitGroup
	serving.Go(func() { h.accept(ctx, l, &serving) })
	defer serving.Wait()
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	pause := backoff.Backoff{First: minRestartDelay, Max: maxRestartDelay}
	for ctx.Err() == nil {
		began := time.Now()
		err := h.runInterpreter(ctx, script)
		if ctx.Err() != nil {
			break
		}
		h.log.Warn("the node's interpreter ended; starting another", "why", err, "after", time.Since(began).Round(time.Second))
		if time.Since(began) > forkserver.ImportTimeout {
			pause.Reset()
		}
		backoff.Sleep(ctx, pause.Next())
	}
	return nil
}

// runInterpreter is the life of one interpreter; the error is why it ended.
func (h *Host) runInterpreter(ctx context.Context, script string) error {
	p, err := h.start(ctx, script)
	if err != nil {
		return err
	}
	defer p.kill()
	health := forkserver.NewParent(forkserver.ParentOptions{
		Env:   forkserver.Environment{Program: h.o.Program, Python: h.o.Argv},
		Facts: func(context.Context) (forkserver.Facts, error) { return p.readFacts() },
	})
	if err := health.SetReady(p.facts); err != nil {
		return err
	}
	h.mu.Lock()
	h.parent = p
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.parent = nil
		h.mu.Unlock()
	}()
	h.log.Info("the node's interpreter is ready", "program", h.o.Program, "version", p.facts.Version, "pid", p.pid,
		"imports", time.Duration(p.facts.Imports*float64(time.Second)).Round(10*time.Millisecond), "bytes", p.facts.Bytes, "missing",
		p.facts.Missing)
	look := time.NewTicker(forkserver.CheckEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.exited:
			return errors.New("it ended")
		case <-look.C:
			if reason := health.Check(ctx); reason != "" {
				return errors.New(reason)
			}
		}
	}
}

// accept takes connections until the listener is closed. Nothing that a pod writes is read
// here: the forked process reads it, once it is confined as its pod is.
func (h *Host) accept(ctx context.Context, l *net.UnixListener, requests *sync.WaitGroup) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			backoff.Sleep(ctx, 10*time.Millisecond)
			continue
		}
		select {
		case h.slots <- struct{}{}:
		default:
			h.refuse(conn, "", fmt.Errorf("%d other requests are being served", h.o.AtOnce))
			conn.Close()
			continue
		}
		requests.Go(func() {
			defer func() { <-h.slots }()
			defer conn.Close()
			pod, err := h.serveConn(conn)
			if err != nil {
				h.refuse(conn, pod, err)
			}
		})
	}
}

// serveConn handles one request. The error is why it is refused.
func (h *Host) serveConn(conn *net.UnixConn) (pod string, err error) {
	began := time.Now()
	pod, err = h.o.IdentifyPod(conn)
	if err != nil {
		return "", fmt.Errorf("not a pod: %w", err)
	}
	if reason := h.limiter.allow(pod, began); reason != "" {
		return pod, errors.New(reason)
	}
	h.mu.Lock()
	p := h.parent
	h.mu.Unlock()
	if p == nil {
		return pod, errors.New("the node's interpreter is not ready")
	}
	pid, err := p.forkInto(conn)
	if err != nil {
		return pod, err
	}
	h.forked.Add(1)
	h.log.Info("forked into a pod", "pod", pod, "pid", pid, "took", time.Since(began).Round(time.Millisecond))
	return pod, nil
}

// refuse answers with the reason and nothing else. The pod starts its engine itself.
func (h *Host) refuse(conn *net.UnixConn, pod string, reason error) {
	h.refused.Add(1)
	h.log.Warn("a request is refused", "pod", pod, "why", reason)
	conn.SetWriteDeadline(time.Now().Add(time.Second))
	json.NewEncoder(conn).Encode(map[string]string{"error": truncate(reason.Error(), 300)})
}

func truncate(s string, n int) string { return s[:min(len(s), n)] }

// listenHost makes the socket. Its folder is root's, below one that is not: no link is
// followed there.
func listenHost(sockets string) (*net.UnixListener, error) {
	path := forkserver.HostSocket(sockets)
	base := filepath.Base(path)
	dir, err := openRootOwnedDir(sockets, filepath.Base(filepath.Dir(path)))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	in := fmt.Sprintf("/proc/self/fd/%d/", dir.Fd())
	for _, name := range []string{base, base + "~"} {
		if err := os.Remove(in + name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: in + base + "~", Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(in+base+"~", 0o666) // access is decided per process, by the kernel's credentials
	if err == nil {
		err = os.Rename(in+base+"~", in+base)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
