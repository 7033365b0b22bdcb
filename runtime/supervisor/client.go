package supervisor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/runtime/jsonsocket"
)

// Start describes the supervisor that Ensure connects to or starts.
type Start struct {
	// Exe is the path of the thaw program; it is run as `Exe keep --socket S --dir D --orphan-timeout O`.
	Exe string
	// Args replace "keep" and its flags in tests.
	Args []string
	// Socket and Dir are Options.Socket and Options.Dir.
	Socket, Dir string
	// Orphan is how long it runs without an agent; 0 is DefaultOrphan.
	Orphan time.Duration
	// Env is the supervisor's environment; nil is PATH, HOME and TMPDIR of
	// this process. Engines get theirs with Spawn.
	Env []string
}

// Ensure connects to the supervisor of a folder and starts one, in a session of its
// own, if none answers. The supervisor outlives the caller. Concurrent callers get
// the same supervisor.
func Ensure(ctx context.Context, s Start) (*Client, error) {
	if c, err := Connect(ctx, s.Socket); err == nil {
		return c, nil
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	// The supervisor has another working directory.
	for _, p := range []*string{&s.Dir, &s.Socket, &s.Exe} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return nil, fmt.Errorf("supervisor: %w", err)
		}
		*p = abs
	}
	s.Orphan = cmp.Or(max(s.Orphan, 0), DefaultOrphan)
	cmd, err := s.command()
	if err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	exited := reapProcess(cmd)
	wait, lostSince := time.Millisecond, time.Time{}
	for {
		if !backoff.Sleep(ctx, wait) {
			cmd.Process.Kill()
			return nil, fmt.Errorf("supervisor: no answer on %s: %w", s.Socket, context.Cause(ctx))
		}
		c, err := Connect(ctx, s.Socket)
		if err == nil {
			if c.PID() != cmd.Process.Pid {
				// Another caller's supervisor has the folder. This one must
				// not take it over when that one ends.
				cmd.Process.Kill()
				<-exited
			}
			return c, nil
		}
		select {
		case <-exited:
			b, _ := os.ReadFile(s.log())
			// Where another supervisor has the folder, that one is about to listen, or to
			// end. A log that is empty was begun anew by another caller.
			lost := len(b) == 0 || bytes.Contains(b, []byte(ErrRunning.Error()))
			if lostSince.IsZero() {
				lostSince = time.Now()
			}
			if !lost || time.Since(lostSince) > listenTimeout {
				return nil, fmt.Errorf("supervisor: %s ended with %v: %.500s", s.Exe, cmd.ProcessState, b)
			}
			if cmd, err = s.command(); err != nil {
				return nil, fmt.Errorf("supervisor: %w", err)
			}
			exited, wait = reapProcess(cmd), restartDelay
			continue
		default:
		}
		wait = min(wait+time.Millisecond, 20*time.Millisecond)
	}
}

const (
	// listenTimeout bounds how long another supervisor has a folder without a greeting:
	// until it listens, or until it has ended its processes.
	listenTimeout = 10 * time.Second
	restartDelay  = 50 * time.Millisecond
)

// reapProcess waits for the end of a supervisor's process, which closes the channel.
func reapProcess(cmd *exec.Cmd) <-chan struct{} {
	exited := make(chan struct{})
	go func() { cmd.Wait(); close(exited) }()
	return exited
}

func (s Start) log() string { return filepath.Join(s.Dir, "supervisor.log") }

func (s Start) command() (*exec.Cmd, error) {
	args, env := s.Args, s.Env
	if args == nil {
		args = []string{"keep", "--socket", s.Socket, "--dir", s.Dir, "--orphan-timeout", s.Orphan.String()}
	}
	if env == nil {
		for _, k := range []string{"PATH", "HOME", "TMPDIR"} {
			if v, ok := os.LookupEnv(k); ok {
				env = append(env, k+"="+v)
			}
		}
	}
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(s.Exe, args...)
	cmd.Env, cmd.Dir = env, s.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, cmd.Start()
}

// Client is a connection to a supervisor. Its methods may be called from any goroutine.
type Client struct {
	conn  *jsonsocket.Conn
	hello hello
	done  chan struct{}

	mu       sync.Mutex
	seq      uint64
	pending  map[uint64]chan reply
	children map[string]*Child
	exits    map[string]Exit // of processes that were not followed when they ended
	closed   bool            // by Close: no process is lost
}

// Child is a process of the supervisor that this client follows.
type Child struct {
	ID  string
	PID int
	Log string // path of its log
	// Exited receives the exit, once; with Lost set if the supervisor is gone.
	Exited <-chan Exit

	exited chan Exit
}

// NewChild makes a Child for other implementations of a spawner; exit ends it, once.
func NewChild(id string, pid int, log string) (c *Child, exit func(Exit)) {
	ch := make(chan Exit, 1)
	return &Child{ID: id, PID: pid, Log: log, Exited: ch, exited: ch}, func(e Exit) {
		select {
		case ch <- e:
		default:
		}
	}
}

func Connect(ctx context.Context, socket string) (*Client, error) {
	conn, err := jsonsocket.Dial(ctx, socket, MaxLine)
	if err != nil {
		return nil, err
	}
	conn.WriteWait = writeWait
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(5 * time.Second)
	}
	conn.SetReadDeadline(deadline)
	var r reply
	if err := conn.Receive(&r); err != nil || r.Hello == nil {
		conn.Close()
		return nil, fmt.Errorf("%s: no greeting of a supervisor: %w", socket, errors.Join(err, ErrLost))
	}
	if r.Hello.Protocol != Protocol {
		conn.Close()
		return nil, fmt.Errorf("%s: the supervisor has protocol %d, this program %d", socket, r.Hello.Protocol, Protocol)
	}
	conn.SetReadDeadline(time.Time{})
	c := &Client{conn: conn, hello: *r.Hello, done: make(chan struct{}), pending: map[uint64]chan reply{}, children: map[string]*Child{},
		exits: map[string]Exit{}}
	go c.read()
	return c, nil
}

func (c *Client) PID() int { return c.hello.PID }

// Done is closed when the connection has ended and, if the supervisor died, its
// processes were killed.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection; the processes go on, and Orphan begins to count.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	err := c.conn.Close()
	<-c.done
	return err
}

// Spawn starts a process as a child of the supervisor; it outlives this client.
func (c *Client) Spawn(ctx context.Context, p Process) (*Child, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("spawn: %w", err)
	}
	child, _ := NewChild(p.ID, 0, cmp.Or(p.Log, LogPath(c.hello.Dir, p.ID)))
	c.mu.Lock()
	old := c.children[p.ID]
	c.children[p.ID] = child // before the request: it may exit before the reply is read
	c.mu.Unlock()
	r, err := c.request(ctx, request{Op: "spawn", Process: &p})
	if err != nil {
		c.mu.Lock()
		if old != nil {
			c.children[p.ID] = old
		} else {
			delete(c.children, p.ID)
		}
		c.mu.Unlock()
		return nil, fmt.Errorf("spawn %s: %w", p.ID, err)
	}
	c.mu.Lock()
	child.PID = r.PID // read reads it too
	c.mu.Unlock()
	return child, nil
}

// Follow returns the Child of a process from List. If it has ended, Exited has the
// exit already.
func (c *Client) Follow(r Running) *Child {
	child, exit := NewChild(r.ID, r.PID, r.Log)
	if r.Exit != nil {
		exit(*r.Exit)
		return child
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// It may have ended since it was listed.
	if e, ok := c.exits[r.ID]; ok && e.PID == r.PID {
		exit(e)
		return child
	}
	select {
	case <-c.done:
		exit(Exit{ID: r.ID, PID: r.PID, Code: -1, At: time.Now(), Lost: true})
	default:
		c.children[r.ID] = child
	}
	return child
}

// List returns the processes that run or have ended without Forget, oldest first.
func (c *Client) List(ctx context.Context) ([]Running, error) {
	r, err := c.request(ctx, request{Op: "list"})
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return r.Items, nil
}

// Signal signals the whole group of a process. It is no error if it has ended.
func (c *Client) Signal(ctx context.Context, id string, sig syscall.Signal) error {
	if _, err := c.request(ctx, request{Op: "signal", ID: id, Signal: int(sig)}); err != nil {
		return fmt.Errorf("signal %s: %w", id, err)
	}
	return nil
}

// Kill ends the whole group of a process at once.
func (c *Client) Kill(ctx context.Context, id string) error {
	return c.Signal(ctx, id, syscall.SIGKILL)
}

// Forget drops the record of a process that has ended.
func (c *Client) Forget(ctx context.Context, id string) error {
	c.mu.Lock()
	delete(c.exits, id)
	c.mu.Unlock()
	if _, err := c.request(ctx, request{Op: "forget", ID: id}); err != nil {
		return fmt.Errorf("forget %s: %w", id, err)
	}
	return nil
}

// End ends every group, with grace between SIGTERM and SIGKILL, then the supervisor,
// and returns when the supervisor is gone.
func (c *Client) End(ctx context.Context, grace time.Duration) error {
	if _, err := c.request(ctx, request{Op: "end", Grace: grace.Milliseconds()}); err != nil && !errors.Is(err, ErrLost) {
		return fmt.Errorf("end: %w", err)
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end: %w", context.Cause(ctx))
	}
}

func (c *Client) request(ctx context.Context, r request) (reply, error) {
	ch := make(chan reply, 1)
	c.mu.Lock()
	c.seq++
	r.Seq = c.seq
	c.pending[r.Seq] = ch
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, r.Seq)
		c.mu.Unlock()
	}()
	if err := c.conn.Send(r); errors.Is(err, jsonsocket.ErrLine) {
		return reply{}, err
	} else if err != nil {
		return reply{}, errors.Join(ErrLost, err)
	}
	select {
	case a := <-ch:
		if a.NoParent {
			return a, fmt.Errorf("%w: %s", ErrNoParent, strings.TrimPrefix(a.Error, ErrNoParent.Error()+": "))
		}
		if a.Error != "" {
			return a, errors.New(a.Error)
		}
		return a, nil
	case <-c.done:
		return reply{}, ErrLost
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
}

// read dispatches replies and exits until the connection ends.
func (c *Client) read() {
	defer c.conn.Close()
	for {
		var r reply
		if err := c.conn.Receive(&r); err != nil {
			break
		}
		c.mu.Lock()
		switch {
		case r.Exit != nil:
			if ch := c.children[r.Exit.ID]; ch != nil {
				delete(c.children, r.Exit.ID)
				ch.exited <- *r.Exit
			} else if len(c.exits) < keepExits {
				c.exits[r.Exit.ID] = *r.Exit
			}
		case c.pending[r.Seq] != nil:
			c.pending[r.Seq] <- r
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	lost := !closed && supervisorGone(c.hello.Dir)
	if lost {
		endSession(c.hello.PID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.done)
	if closed {
		return
	}
	for id, ch := range c.children {
		if lost && ch.PID > 1 {
			syscall.Kill(-ch.PID, syscall.SIGKILL)
		}
		ch.exited <- Exit{ID: id, PID: ch.PID, Code: -1, At: time.Now(), Lost: true}
	}
	clear(c.children)
}

// supervisorGone reports whether the lock of a folder is free. It tries for half a
// second: the kernel closes a killed process's socket before its lock.
func supervisorGone(dir string) bool {
	for range 50 {
		f, err := acquireLock(dir, 0)
		if err == nil {
			f.Close()
			return true
		}
		if !errors.Is(err, ErrRunning) {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}
