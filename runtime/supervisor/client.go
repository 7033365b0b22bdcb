package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Start says how to have a supervisor.
type Start struct {
	// Exe is the path of the thaw program; it is run as `Exe keep --socket S --dir D --orphan-timeout O`.
	Exe string
	// Args replace "keep" and its flags where a test wants something else.
	Args []string
	// Socket and Dir are the supervisor's.
	Socket, Dir string
	// Orphan is how long it lives without an agent; 0 is DefaultOrphan.
	Orphan time.Duration
	// Env is the supervisor's environment; nil is PATH, HOME and TMPDIR of ours.
	// Engines get theirs with Spawn.
	Env []string
}

// Ensure connects to the supervisor of a folder, and starts one in a session of its
// own if none answers. The supervisor outlives the caller. Two callers at once get
// the same supervisor.
func Ensure(ctx context.Context, s Start) (*Client, error) {
	if c, err := Connect(ctx, s.Socket); err == nil {
		return c, nil
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	// It works in its own folder, where relative paths would mean other files.
	for _, p := range []*string{&s.Dir, &s.Socket, &s.Exe} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return nil, fmt.Errorf("supervisor: %w", err)
		}
		*p = abs
	}
	if s.Orphan <= 0 {
		s.Orphan = DefaultOrphan
	}
	args := s.Args
	if args == nil {
		args = []string{"keep", "--socket", s.Socket, "--dir", s.Dir, "--orphan-timeout", s.Orphan.String()}
	}
	env := s.Env
	if env == nil {
		for _, k := range []string{"PATH", "HOME", "TMPDIR"} {
			if v, ok := os.LookupEnv(k); ok {
				env = append(env, k+"="+v)
			}
		}
	}
	log, err := os.OpenFile(filepath.Join(s.Dir, "supervisor.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(s.Exe, args...)
	cmd.Env, cmd.Dir = env, s.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	// This goroutine ends with the supervisor, which outlives us unless End is
	// called: it is there so that a dead supervisor does not stay a zombie.
	exited := make(chan struct{})
	go func() { cmd.Wait(); close(exited) }()
	wait, over := time.Millisecond, exited
	for {
		select {
		case <-ctx.Done():
			cmd.Process.Kill()
			return nil, fmt.Errorf("supervisor: no answer on %s: %w", s.Socket, context.Cause(ctx))
		case <-time.After(wait):
		}
		c, err := Connect(ctx, s.Socket)
		if err == nil {
			if c.PID() != cmd.Process.Pid {
				// Somebody else's was first. Ours must not take the folder
				// when that one ends.
				cmd.Process.Kill()
				<-exited
			}
			return c, nil
		}
		select {
		case <-over:
			// Ended: it may have lost the race for the folder to another one
			// that is about to listen, so look once more before giving up.
			over = nil
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
			if c, err := Connect(ctx, s.Socket); err == nil {
				return c, nil
			}
			b, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("supervisor: %s ended with %v: %.500s", s.Exe, cmd.ProcessState, b)
		default:
		}
		wait = min(wait+time.Millisecond, 20*time.Millisecond)
	}
}

// Client speaks to a supervisor. Its methods may be called from any goroutine.
type Client struct {
	conn  net.Conn
	hello hello
	done  chan struct{}

	wmu sync.Mutex // one line at a time

	mu       sync.Mutex
	seq      uint64
	pending  map[uint64]chan reply
	children map[string]*Child
	exits    map[string]Exit // of processes nobody followed when they ended
	closed   bool            // by us: nothing is lost
}

// Child is a process of the supervisor that somebody here follows.
type Child struct {
	ID  string
	PID int
	Log string // path of its log
	// Exited gets the exit, once. When the supervisor itself is lost it is an Exit
	// with Lost set.
	Exited <-chan Exit

	exited chan Exit
}

// NewChild is for other bodies of a spawner: exit ends the child, once.
func NewChild(id string, pid int, log string) (c *Child, exit func(Exit)) {
	ch := make(chan Exit, 1)
	return &Child{ID: id, PID: pid, Log: log, Exited: ch, exited: ch}, func(e Exit) {
		select {
		case ch <- e:
		default:
		}
	}
}

// Connect speaks to the supervisor on a socket; an error if none answers.
func Connect(ctx context.Context, socket string) (*Client, error) {
	short, done, err := shortPath(socket)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", short)
	if err != nil {
		return nil, err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(5 * time.Second)
	}
	conn.SetReadDeadline(deadline)
	in := newLineReader(conn)
	var r reply
	if err := in.next(&r); err != nil || r.Hello == nil {
		conn.Close()
		return nil, fmt.Errorf("%s: no supervisor's hello: %w", socket, errors.Join(err, ErrLost))
	}
	if r.Hello.Protocol != Protocol {
		conn.Close()
		return nil, fmt.Errorf("%s: supervisor speaks protocol %d, this is %d", socket, r.Hello.Protocol, Protocol)
	}
	conn.SetReadDeadline(time.Time{})
	c := &Client{conn: conn, hello: *r.Hello, done: make(chan struct{}), pending: map[uint64]chan reply{}, children: map[string]*Child{}, exits: map[string]Exit{}}
	go c.read(in)
	return c, nil
}

// PID of the supervisor.
func (c *Client) PID() int { return c.hello.PID }

// Done is closed when the connection has ended and, if the supervisor died, what
// it had started has been killed.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close leaves the supervisor alone with its processes: its orphan time begins.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	err := c.conn.Close()
	<-c.done
	return err
}

// Spawn runs a process. The child is the supervisor's: it stays if we die.
func (c *Client) Spawn(ctx context.Context, p Process) (*Child, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("spawn: %w", err)
	}
	log := p.Log
	if log == "" {
		log = filepath.Join(c.hello.Dir, "logs", p.ID+".log")
	}
	child, _ := NewChild(p.ID, 0, log)
	c.mu.Lock()
	old := c.children[p.ID]
	c.children[p.ID] = child // before the ask: it may end before we hear of it
	c.mu.Unlock()
	r, err := c.ask(ctx, request{Op: "spawn", Process: &p})
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
	child.PID = r.PID // the reader looks at it too
	c.mu.Unlock()
	return child, nil
}

// Follow is for a process that runs already, as List gave it. One that has
// ended is told at once.
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

// List is what runs, and what has ended and was not forgotten, oldest first.
func (c *Client) List(ctx context.Context) ([]Running, error) {
	r, err := c.ask(ctx, request{Op: "list"})
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return r.Items, nil
}

// Signal goes to the whole group of a process. No error if it has ended.
func (c *Client) Signal(ctx context.Context, id string, sig syscall.Signal) error {
	if _, err := c.ask(ctx, request{Op: "signal", ID: id, Signal: int(sig)}); err != nil {
		return fmt.Errorf("signal %s: %w", id, err)
	}
	return nil
}

// Kill ends the whole group of a process at once.
func (c *Client) Kill(ctx context.Context, id string) error {
	return c.Signal(ctx, id, syscall.SIGKILL)
}

// Tail is the end of the log of a process, at most 16 KiB.
func (c *Client) Tail(ctx context.Context, id string) (string, error) {
	r, err := c.ask(ctx, request{Op: "tail", ID: id})
	if err != nil {
		return "", fmt.Errorf("tail %s: %w", id, err)
	}
	return r.Tail, nil
}

// Forget drops the record of a process that has ended.
func (c *Client) Forget(ctx context.Context, id string) error {
	c.mu.Lock()
	delete(c.exits, id)
	c.mu.Unlock()
	if _, err := c.ask(ctx, request{Op: "forget", ID: id}); err != nil {
		return fmt.Errorf("forget %s: %w", id, err)
	}
	return nil
}

// End ends every group, with grace between SIGTERM and SIGKILL, and then the
// supervisor; it returns when the supervisor is gone.
func (c *Client) End(ctx context.Context, grace time.Duration) error {
	if _, err := c.ask(ctx, request{Op: "end", Grace: grace.Milliseconds()}); err != nil && !errors.Is(err, ErrLost) {
		return fmt.Errorf("end: %w", err)
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end: %w", context.Cause(ctx))
	}
}

func (c *Client) ask(ctx context.Context, r request) (reply, error) {
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
	line, err := json.Marshal(r)
	if err != nil {
		return reply{}, err
	}
	if len(line) >= MaxLine {
		return reply{}, fmt.Errorf("%d bytes are too many for one line (%d)", len(line), MaxLine)
	}
	c.wmu.Lock()
	c.conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
	_, err = c.conn.Write(append(line, '\n'))
	c.wmu.Unlock()
	if err != nil {
		return reply{}, errors.Join(ErrLost, err)
	}
	select {
	case a := <-ch:
		if why, ok := strings.CutPrefix(a.Error, ErrNoParent.Error()); ok {
			return a, fmt.Errorf("%w%s", ErrNoParent, why)
		}
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

// read gives every line to whom it concerns until the connection ends.
func (c *Client) read(in lineReader) {
	defer c.conn.Close()
	for {
		var r reply
		if err := in.next(&r); err != nil {
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
	died := !closed && supervisorGone(c.hello.Dir)
	if died {
		endSession(c.hello.PID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.done)
	if closed {
		return
	}
	for id, ch := range c.children {
		if died && ch.PID > 1 {
			syscall.Kill(-ch.PID, syscall.SIGKILL)
		}
		ch.exited <- Exit{ID: id, PID: ch.PID, Code: -1, At: time.Now(), Lost: true}
	}
	clear(c.children)
}

// supervisorGone reports whether the supervisor of a folder is gone: its lock is free. The
// kernel closes the socket and the lock of a killed process one after the
// other, hence the second and third look.
func supervisorGone(dir string) bool {
	for range 50 {
		f, err := acquireLock(dir)
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
