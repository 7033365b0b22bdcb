package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Options of a supervisor.
type Options struct {
	// Socket is where it listens.
	Socket string
	// Dir is its folder, mode 0700: the lock, the note of who it is, the logs.
	Dir string
	// Orphan is how long it lives without an agent; 0 is DefaultOrphan.
	Orphan time.Duration
	// Grace between SIGTERM and SIGKILL when it ends what runs; 0 is DefaultGrace.
	Grace time.Duration
	// Log says what happens to processes; nil discards.
	Log *slog.Logger
}

// Defaults of Options.
const (
	DefaultOrphan = 60 * time.Second
	DefaultGrace  = 2 * time.Second
)

// logDrainWait bounds the wait for the last lines of a process that has ended.
const logDrainWait = 100 * time.Millisecond

// straysAfter an end, strays are looked for: after it was told, for looking
// through all processes takes a while.
const straysAfter = 10 * time.Millisecond

// keepExits bounds the records of processes that have ended.
const keepExits = 256

// idVariable is the variable by which a stray is known to be of an engine's kin.
const idVariable = "THAW_SUPERVISED="

// Run is the supervisor. It must have the process to itself: it reaps every child
// there is. It ends when ctx does or when it has been an orphan for too long,
// in both cases after every group it started is gone. ErrRunning: the folder
// has a supervisor already.
func Run(ctx context.Context, o Options) error {
	if o.Orphan <= 0 {
		o.Orphan = DefaultOrphan
	}
	if o.Grace <= 0 {
		o.Grace = DefaultGrace
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	lock, err := acquireLock(o.Dir)
	if err != nil {
		return fmt.Errorf("supervisor: %s: %w", o.Dir, err)
	}
	defer lock.Close()
	endPredecessor(o.Dir, o.Log)
	if err := becomeReaper(); err != nil {
		return fmt.Errorf("supervisor: child subreaper: %w", err)
	}
	ln, err := listenUnix(o.Socket)
	if err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	defer ln.Close()
	if err := writeNote(o.Dir); err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	// Nothing of ours runs now, nor will when we return.
	scratch := ScratchRoot(o.Dir)
	os.RemoveAll(scratch)
	defer os.RemoveAll(scratch)
	removePredecessorShared(o.Dir)
	k := &supervisor{
		o: o, byID: map[string]*process{}, byPID: map[int]*process{}, clients: map[*client]bool{},
		forks: map[string]*forking{}, earlyExits: map[int]syscall.WaitStatus{}, ooms: oomKills(),
		inbox: make(chan clientEvent), drained: make(chan *process), forked: make(chan *forking), stop: make(chan struct{}),
	}
	defer close(k.stop)
	go k.accept(ln)
	// A death signal is tied to the thread that forked, so this one stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return k.run(ctx)
}

// supervisor is the supervisor's state; the goroutine of run owns all of it.
type supervisor struct {
	o       Options
	byID    map[string]*process
	byPID   map[int]*process // alive ones
	clients map[*client]bool
	ending  bool
	order   []string // ids in order of their end
	spawned int
	ooms    int64 // the kernel's count, as last read
	// unclaimed is what was just created in shared memory.
	unclaimed []sharedEntry
	ended     time.Time // of a process, the last

	forks      map[string]*forking        // conversations with parents, by id
	earlyExits map[int]syscall.WaitStatus // ends of processes that a parent may be about to name

	inbox   chan clientEvent
	drained chan *process
	forked  chan *forking
	stop    chan struct{} // closed when run has returned
}

type process struct {
	Running
	log      *outputLog
	reported bool              // exit complete and told
	scratch  string            // to be removed with it
	shared   map[string]uint64 // names in shared memory that its group uses, with their inodes
}

// clientEvent is what a connection says: a request, that it has come, that it is gone.
type clientEvent struct {
	from *client
	req  *request // nil: come or gone
	gone bool
}

func (k *supervisor) run(ctx context.Context) error {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)

	orphan := time.NewTimer(k.o.Orphan)
	defer orphan.Stop()
	kill := time.NewTimer(time.Hour)
	kill.Stop()
	defer kill.Stop()
	sweep := time.NewTimer(time.Hour)
	sweep.Stop()
	defer sweep.Stop()
	claim := time.NewTimer(time.Hour)
	claim.Stop()
	defer claim.Stop()
	created := watchShm(k.stop)
	done := ctx.Done()
	end := func(grace time.Duration, why string) {
		if k.ending {
			return
		}
		k.o.Log.Info("ending every process", "why", why, "running", len(k.byPID))
		k.ending = true
		for _, p := range k.byPID {
			syscall.Kill(-p.PID, syscall.SIGTERM)
		}
		kill.Reset(grace)
	}
	for {
		select {
		case <-done:
			done = nil
			end(k.o.Grace, "told to end")
		case <-orphan.C:
			if len(k.clients) == 0 {
				end(k.o.Grace, "no agent for "+k.o.Orphan.String())
			}
		case <-kill.C:
			for _, p := range k.byPID {
				syscall.Kill(-p.PID, syscall.SIGKILL)
			}
			k.killStrays()
			kill.Reset(200 * time.Millisecond)
		case <-children:
			if k.reap() {
				sweep.Reset(straysAfter)
			}
		case <-sweep.C:
			k.killStrays()
		case name, ok := <-created:
			if !ok {
				created = nil
			} else if (len(k.byPID) > 0 || time.Since(k.ended) < time.Second) && len(k.unclaimed) < 1024 {
				k.unclaimed = append(k.unclaimed, sharedEntry{name: name, inode: shmInode(name), created: time.Now()})
				claim.Reset(ownerSearchAfter[0])
			}
		case <-claim.C:
			if d, more := k.findOwners(time.Now()); more {
				claim.Reset(d)
			}
		case p := <-k.drained:
			k.reportExit(p)
		case f := <-k.forked:
			r := k.finishFork(f)
			r.Seq = f.seq
			f.from.send(r)
			sweep.Reset(straysAfter)
		case m := <-k.inbox:
			switch {
			case m.gone:
				delete(k.clients, m.from)
				if len(k.clients) == 0 {
					orphan.Reset(k.o.Orphan)
				}
			case m.req == nil:
				k.clients[m.from] = true
				orphan.Stop()
				m.from.send(reply{Hello: &hello{Protocol: Protocol, PID: os.Getpid(), Dir: k.o.Dir}})
			case m.req.Op == "end":
				m.from.send(reply{Seq: m.req.Seq})
				end(time.Duration(m.req.Grace)*time.Millisecond, "the agent said so")
			default:
				r, later := k.handle(m.from, m.req)
				if later {
					break
				}
				r.Seq = m.req.Seq
				m.from.send(r)
			}
		}
		if k.ending && k.allGone() {
			for c := range k.clients {
				c.close()
			}
			return nil
		}
	}
}

// allGone reports whether nothing of what we started is left, strays included.
func (k *supervisor) allGone() bool {
	if len(k.byPID) > 0 || len(k.forks) > 0 {
		return false
	}
	for _, p := range k.byID {
		if !p.reported {
			return false
		}
	}
	return k.killStrays() == 0
}

// handle does what was asked; later says that the answer comes by itself.
func (k *supervisor) handle(from *client, r *request) (a reply, later bool) {
	if r.Op != "spawn" {
		return k.handleSimple(r), false
	}
	if r.Process == nil {
		return reply{Error: "spawn: no process"}, false
	}
	pid, err := k.spawn(*r.Process, from, r.Seq)
	if err != nil {
		if old := k.byID[r.Process.ID]; (old == nil || old.reported) && k.forks[r.Process.ID] == nil {
			os.RemoveAll(r.Process.Scratch)
		}
		return reply{Error: err.Error(), NoParent: errors.Is(err, ErrNoParent)}, false
	}
	return reply{PID: pid}, pid == 0
}

func (k *supervisor) handleSimple(r *request) reply {
	switch r.Op {
	case "list":
		items := make([]Running, 0, len(k.byID))
		for _, p := range k.byID {
			if p.Exit == nil || p.reported {
				items = append(items, p.Running)
			}
		}
		slices.SortFunc(items, func(a, b Running) int { return a.Started.Compare(b.Started) })
		return reply{Items: items}
	}
	p := k.byID[r.ID]
	if p == nil {
		return reply{Error: "no process " + r.ID}
	}
	switch r.Op {
	case "signal":
		if p.Exit != nil {
			return reply{} // it is over, which is what a signal is about
		}
		if r.Signal < 0 || r.Signal > 64 {
			return reply{Error: fmt.Sprintf("%d is no signal", r.Signal)}
		}
		if err := syscall.Kill(-p.PID, syscall.Signal(r.Signal)); err != nil && err != syscall.ESRCH {
			return reply{Error: "signal " + r.ID + ": " + err.Error()}
		}
		return reply{}
	case "tail":
		if p.reported {
			return reply{Tail: p.Exit.Tail}
		}
		return reply{Tail: p.log.lastBytes()}
	case "forget":
		if p.Exit == nil {
			return reply{Error: r.ID + " is running"}
		}
		if p.reported {
			delete(k.byID, r.ID)
		}
		return reply{}
	}
	return reply{Error: "unknown op " + r.Op}
}

// spawn executes a process, or has a parent fork it: then the pid is 0, and the
// answer comes later.
func (k *supervisor) spawn(p Process, from *client, seq uint64) (int, error) {
	if err := p.check(); err != nil {
		return 0, err
	}
	if k.forks[p.ID] != nil {
		return 0, fmt.Errorf("%s is being forked already", p.ID)
	}
	if p.Via != "" && len(k.forks) >= maxForks {
		return 0, fmt.Errorf("%w: %d others are on their way", ErrNoParent, len(k.forks))
	}
	if k.ending {
		return 0, errors.New("the supervisor is ending")
	}
	if old := k.byID[p.ID]; old != nil && !old.reported {
		return 0, fmt.Errorf("%s is running already (pid %d)", p.ID, old.PID)
	}
	if p.Dir == "" {
		p.Dir = k.o.Dir
	} else if _, err := os.Stat(p.Dir); err != nil {
		return 0, err // exec would blame the program
	}
	if p.Log == "" {
		p.Log = filepath.Join(k.o.Dir, "logs", p.ID+".log")
	}
	if p.Scratch != "" {
		if err := makeScratch(p.Scratch); err != nil {
			return 0, fmt.Errorf("scratch folder: %w", err)
		}
	}
	j, w, err := newOutputLog(p.Log, LogBytes)
	if err != nil {
		return 0, err
	}
	abandon := func() { j.pipe.Close(); j.file.Close(); w.Close() }
	out := w.Fd()
	// A pipe of ours does not block; a program expects its output to.
	if err := syscall.SetNonblock(int(out), false); err != nil {
		abandon()
		return 0, err
	}
	if p.Via != "" {
		k.startFork(&forking{p: p, j: j, from: from, seq: seq, began: time.Now()}, w)
		return 0, nil
	}
	defer w.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		abandon()
		return 0, err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(p.Argv[0], p.Argv, &syscall.ProcAttr{
		Dir: p.Dir, Env: append(slices.Clone(p.Env), idVariable+p.ID),
		Files: []uintptr{null.Fd(), out, out}, Sys: groupLeader(),
	})
	if err != nil {
		abandon()
		return 0, &os.PathError{Op: "exec", Path: p.Argv[0], Err: err}
	}
	k.addProcess(p, pid, j)
	k.o.Log.Info("spawned", "id", p.ID, "pid", pid, "program", filepath.Base(p.Argv[0]))
	return pid, nil
}

// addProcess enters a process that runs.
func (k *supervisor) addProcess(p Process, pid int, j *outputLog) {
	pr := &process{log: j, scratch: p.Scratch, Running: Running{ID: p.ID, PID: pid, Log: p.Log, Started: time.Now(), Meta: p.Meta}}
	k.byID[p.ID], k.byPID[pid] = pr, pr
	if k.spawned++; k.spawned%16 == 1 {
		k.pruneLogs()
	}
	go j.copy()
}

// pruneLogs drops the oldest logs of processes that have ended.
func (k *supervisor) pruneLogs() {
	inUse := map[string]bool{}
	for _, p := range k.byID {
		if p.Exit == nil {
			inUse[p.Log], inUse[p.Log+".1"] = true, true
		}
	}
	pruneLogs(filepath.Join(k.o.Dir, "logs"), inUse)
}

// reap takes every child that has ended: leaders, and strays we adopted. It
// says whether there were any.
func (k *supervisor) reap() (some bool) {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			break
		}
		some = true
		if k.byPID[pid] != nil {
			k.processExited(pid, ws)
		} else if len(k.forks) > 0 {
			k.earlyExits[pid] = ws
		}
	}
	return some
}

// processExited is the end of a process.
func (k *supervisor) processExited(pid int, ws syscall.WaitStatus) {
	p := k.byPID[pid]
	// What is left of the group goes at once: its number is not given to
	// anybody else while it has members.
	syscall.Kill(-pid, syscall.SIGKILL)
	delete(k.byPID, pid)
	e := &Exit{ID: p.ID, PID: pid, Code: -1, At: time.Now()}
	if ws.Signaled() {
		e.Signal = ws.Signal()
		if e.Signal == syscall.SIGKILL {
			n := oomKills()
			e.OOM, k.ooms = n > k.ooms, n
		}
	} else {
		e.Code = ws.ExitStatus()
	}
	p.Exit = e
	k.ended = e.At
	go func() {
		p.log.finish(logDrainWait)
		p.removeLeftovers()
		select {
		case k.drained <- p:
		case <-k.stop:
		}
	}()
}

// killStrays kills children of ours that no living engine owns, and says how many
// it saw. They are what engines forked and abandoned.
func (k *supervisor) killStrays() (seen int) {
	if len(k.forks) > 0 {
		return 1 // one of them may be about to be named; there will be a next time
	}
	self := os.Getpid()
	for _, c := range listProcesses() {
		if c.parent != self || c.zombie || k.byPID[c.pid] != nil || k.byPID[c.group] != nil {
			continue
		}
		owned := false
		for _, p := range k.byPID {
			if hasEnvironment(c.pid, idVariable+p.ID) {
				owned = true
				break
			}
		}
		if owned && !k.ending {
			continue
		}
		seen++
		syscall.Kill(c.pid, syscall.SIGKILL)
	}
	return seen
}

// reportExit completes an exit with the last lines and pushes it.
func (k *supervisor) reportExit(p *process) {
	p.Exit.Tail, p.reported = strings.ToValidUTF8(p.log.lastBytes(), "\uFFFD"), true
	p.log = nil
	k.o.Log.Info("ended", "id", p.ID, "pid", p.PID, "how", p.Exit.String())
	for c := range k.clients {
		c.send(reply{Exit: p.Exit})
	}
	k.order = append(k.order, p.ID)
	for len(k.order) > keepExits {
		if old := k.byID[k.order[0]]; old != nil && old.reported {
			delete(k.byID, old.ID)
		}
		k.order = k.order[1:]
	}
}

// accept serves connections until the listener is closed.
func (k *supervisor) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			select {
			case <-time.After(10 * time.Millisecond):
				continue
			case <-k.stop:
				return
			}
		}
		go k.serve(conn)
	}
}

// client is one connection. Its lines go out through a bounded queue of its
// own, so that one who does not read cannot hold up the supervisor.
type client struct {
	conn   net.Conn
	out    chan reply
	closed chan struct{}
}

func (c *client) send(r reply) {
	select {
	case c.out <- r:
	default:
		c.conn.Close() // it does not read; it may come again and list
	}
}

// close lets what has been said go out first.
func (c *client) close() { close(c.out); <-c.closed }

func (k *supervisor) serve(conn net.Conn) {
	c := &client{conn: conn, out: make(chan reply, 1024), closed: make(chan struct{})}
	post := func(m clientEvent) bool {
		select {
		case k.inbox <- m:
			return true
		case <-k.stop:
			return false
		}
	}
	gone := make(chan struct{})
	defer close(gone)
	go func() {
		defer close(c.closed)
		defer conn.Close()
		w := json.NewEncoder(conn)
		for {
			select {
			case r, ok := <-c.out:
				if !ok {
					return
				}
				conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
				if w.Encode(r) != nil {
					return
				}
			case <-gone:
				return
			}
		}
	}()
	if !post(clientEvent{from: c}) {
		return
	}
	in := newLineReader(conn)
	for {
		var r request
		if err := in.next(&r); err != nil {
			break
		}
		if !post(clientEvent{from: c, req: &r}) {
			return
		}
	}
	post(clientEvent{from: c, gone: true})
}

func listenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	// We hold the lock, so whatever lies here is stale.
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("%s exists and is no socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	short, done, err := shortPath(path)
	if err != nil {
		return nil, err
	}
	defer done()
	// Nobody else may connect, not even between bind and chmod.
	old := syscall.Umask(0o177)
	ln, err := net.Listen("unix", short)
	syscall.Umask(old)
	if err != nil {
		return nil, err
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	return unlinkingListener{ln, path}, nil
}

// unlinkingListener removes the socket when the listener is closed.
type unlinkingListener struct {
	net.Listener
	path string
}

func (l unlinkingListener) Close() error {
	os.Remove(l.path)
	return l.Listener.Close()
}

func splitPath(path string) (dir, base string) { return filepath.Dir(path), filepath.Base(path) }
