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

// Options of a keeper.
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

// drainLog bounds the wait for the last lines of a process that has ended.
const drainLog = 100 * time.Millisecond

// sweepAfter an end, strays are looked for: after it was told, for looking
// through all processes takes a while.
const sweepAfter = 10 * time.Millisecond

// keepExits bounds the records of processes that have ended.
const keepExits = 256

// marker is the variable by which a stray is known to be of an engine's kin.
const marker = "THAW_KEPT="

// Run is the keeper. It must have the process to itself: it reaps every child
// there is. It ends when ctx does or when it has been an orphan for too long,
// in both cases after every group it started is gone. ErrRunning: the folder
// has a keeper already.
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
		return fmt.Errorf("keeper: %w", err)
	}
	lock, err := takeLock(o.Dir)
	if err != nil {
		return fmt.Errorf("keeper: %s: %w", o.Dir, err)
	}
	defer lock.Close()
	endPredecessor(o.Dir, o.Log)
	if err := becomeReaper(); err != nil {
		return fmt.Errorf("keeper: child subreaper: %w", err)
	}
	ln, err := listen(o.Socket)
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	defer ln.Close()
	if err := writeNote(o.Dir); err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	// Nothing of ours runs now, nor will when we return.
	scratch := ScratchRoot(o.Dir)
	os.RemoveAll(scratch)
	defer os.RemoveAll(scratch)
	clearPredecessor(o.Dir)
	k := &keep{
		o: o, byID: map[string]*proc{}, byPID: map[int]*proc{}, clients: map[*client]bool{},
		forks: map[string]*forking{}, early: map[int]syscall.WaitStatus{}, ooms: oomKills(),
		inbox: make(chan message), drained: make(chan *proc), forked: make(chan *forking), stop: make(chan struct{}),
	}
	defer close(k.stop)
	go k.accept(ln)
	// A death signal is tied to the thread that forked, so this one stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return k.run(ctx)
}

// keep is the keeper's state; the goroutine of run owns all of it.
type keep struct {
	o       Options
	byID    map[string]*proc
	byPID   map[int]*proc // alive ones
	clients map[*client]bool
	ending  bool
	order   []string // ids in order of their end
	spawned int
	ooms    int64 // the kernel's count, as last read
	// unclaimed is what was just created in shared memory.
	unclaimed []leaving
	ended     time.Time // of a process, the last

	forks map[string]*forking        // conversations with parents, by id
	early map[int]syscall.WaitStatus // ends of processes that a parent may be about to name

	inbox   chan message
	drained chan *proc
	forked  chan *forking
	stop    chan struct{} // closed when run has returned
}

type proc struct {
	Running
	journal *journal
	told    bool              // exit complete and told
	scratch string            // to be removed with it
	shared  map[string]uint64 // names in shared memory that its group uses, with their inodes
}

// message is what a connection says: a request, that it has come, that it is gone.
type message struct {
	from *client
	req  *request // nil: come or gone
	gone bool
}

func (k *keep) run(ctx context.Context) error {
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
			k.sweep()
			kill.Reset(200 * time.Millisecond)
		case <-children:
			if k.reap() {
				sweep.Reset(sweepAfter)
			}
		case <-sweep.C:
			k.sweep()
		case name, ok := <-created:
			if !ok {
				created = nil
			} else if (len(k.byPID) > 0 || time.Since(k.ended) < time.Second) && len(k.unclaimed) < 1024 {
				k.unclaimed = append(k.unclaimed, leaving{name: name, inode: shmInode(name), born: time.Now()})
				claim.Reset(claimAfter[0])
			}
		case <-claim.C:
			if d, more := k.claim(time.Now()); more {
				claim.Reset(d)
			}
		case p := <-k.drained:
			k.tell(p)
		case f := <-k.forked:
			r := k.born(f)
			r.Seq = f.seq
			f.from.say(r)
			sweep.Reset(sweepAfter)
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
				m.from.say(reply{Hello: &hello{Protocol: Protocol, PID: os.Getpid(), Dir: k.o.Dir}})
			case m.req.Op == "end":
				m.from.say(reply{Seq: m.req.Seq})
				end(time.Duration(m.req.Grace)*time.Millisecond, "the agent said so")
			default:
				r, later := k.answer(m.from, m.req)
				if later {
					break
				}
				r.Seq = m.req.Seq
				m.from.say(r)
			}
		}
		if k.ending && k.quiet() {
			for c := range k.clients {
				c.close()
			}
			return nil
		}
	}
}

// quiet reports whether nothing of what we started is left, strays included.
func (k *keep) quiet() bool {
	if len(k.byPID) > 0 || len(k.forks) > 0 {
		return false
	}
	for _, p := range k.byID {
		if !p.told {
			return false
		}
	}
	return k.sweep() == 0
}

// answer does what was asked; later says that the answer comes by itself.
func (k *keep) answer(from *client, r *request) (a reply, later bool) {
	if r.Op != "spawn" {
		return k.reply(r), false
	}
	if r.Process == nil {
		return reply{Error: "spawn: no process"}, false
	}
	pid, err := k.spawn(*r.Process, from, r.Seq)
	if err != nil {
		if old := k.byID[r.Process.ID]; (old == nil || old.told) && k.forks[r.Process.ID] == nil {
			os.RemoveAll(r.Process.Scratch)
		}
		return reply{Error: err.Error(), NoParent: errors.Is(err, ErrNoParent)}, false
	}
	return reply{PID: pid}, pid == 0
}

func (k *keep) reply(r *request) reply {
	switch r.Op {
	case "list":
		items := make([]Running, 0, len(k.byID))
		for _, p := range k.byID {
			if p.Exit == nil || p.told {
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
		if p.told {
			return reply{Tail: p.Exit.Tail}
		}
		return reply{Tail: p.journal.last()}
	case "forget":
		if p.Exit == nil {
			return reply{Error: r.ID + " is running"}
		}
		if p.told {
			delete(k.byID, r.ID)
		}
		return reply{}
	}
	return reply{Error: "unknown op " + r.Op}
}

// spawn executes a process, or has a parent fork it: then the pid is 0, and the
// answer comes later.
func (k *keep) spawn(p Process, from *client, seq uint64) (int, error) {
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
		return 0, errors.New("the keeper is ending")
	}
	if old := k.byID[p.ID]; old != nil && !old.told {
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
	j, w, err := newJournal(p.Log, LogBytes)
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
		k.forkVia(&forking{p: p, j: j, from: from, seq: seq, began: time.Now()}, w)
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
		Dir: p.Dir, Env: append(slices.Clone(p.Env), marker+p.ID),
		Files: []uintptr{null.Fd(), out, out}, Sys: groupLeader(),
	})
	if err != nil {
		abandon()
		return 0, &os.PathError{Op: "exec", Path: p.Argv[0], Err: err}
	}
	k.begin(p, pid, j)
	k.o.Log.Info("spawned", "id", p.ID, "pid", pid, "program", filepath.Base(p.Argv[0]))
	return pid, nil
}

// begin enters a process that runs.
func (k *keep) begin(p Process, pid int, j *journal) {
	pr := &proc{journal: j, scratch: p.Scratch, Running: Running{ID: p.ID, PID: pid, Log: p.Log, Started: time.Now(), Meta: p.Meta}}
	k.byID[p.ID], k.byPID[pid] = pr, pr
	if k.spawned++; k.spawned%16 == 1 {
		k.pruneLogs()
	}
	go j.copy()
}

// pruneLogs drops the oldest logs of processes that have ended.
func (k *keep) pruneLogs() {
	inUse := map[string]bool{}
	for _, p := range k.byID {
		if p.Exit == nil {
			inUse[p.Log], inUse[p.Log+".1"] = true, true
		}
	}
	prune(filepath.Join(k.o.Dir, "logs"), inUse)
}

// reap takes every child that has ended: leaders, and strays we adopted. It
// says whether there were any.
func (k *keep) reap() (some bool) {
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
			k.over(pid, ws)
		} else if len(k.forks) > 0 {
			k.early[pid] = ws
		}
	}
	return some
}

// over is the end of a process.
func (k *keep) over(pid int, ws syscall.WaitStatus) {
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
		p.journal.finish(drainLog)
		p.clear()
		select {
		case k.drained <- p:
		case <-k.stop:
		}
	}()
}

// sweep kills children of ours that no living engine owns, and says how many
// it saw. They are what engines forked and abandoned.
func (k *keep) sweep() (seen int) {
	if len(k.forks) > 0 {
		return 1 // one of them may be about to be named; there will be a next time
	}
	self := os.Getpid()
	for _, c := range kindred() {
		if c.parent != self || c.zombie || k.byPID[c.pid] != nil || k.byPID[c.group] != nil {
			continue
		}
		owned := false
		for _, p := range k.byPID {
			if belongs(c.pid, marker+p.ID) {
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

// tell completes an exit with the last lines and pushes it.
func (k *keep) tell(p *proc) {
	p.Exit.Tail, p.told = strings.ToValidUTF8(p.journal.last(), "\uFFFD"), true
	p.journal = nil
	k.o.Log.Info("ended", "id", p.ID, "pid", p.PID, "how", p.Exit.String())
	for c := range k.clients {
		c.say(reply{Exit: p.Exit})
	}
	k.order = append(k.order, p.ID)
	for len(k.order) > keepExits {
		if old := k.byID[k.order[0]]; old != nil && old.told {
			delete(k.byID, old.ID)
		}
		k.order = k.order[1:]
	}
}

// accept serves connections until the listener is closed.
func (k *keep) accept(ln net.Listener) {
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
// own, so that one who does not read cannot hold up the keeper.
type client struct {
	conn net.Conn
	out  chan reply
	bye  chan struct{}
}

func (c *client) say(r reply) {
	select {
	case c.out <- r:
	default:
		c.conn.Close() // it does not read; it may come again and list
	}
}

// close lets what has been said go out first.
func (c *client) close() { close(c.out); <-c.bye }

func (k *keep) serve(conn net.Conn) {
	c := &client{conn: conn, out: make(chan reply, 1024), bye: make(chan struct{})}
	post := func(m message) bool {
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
		defer close(c.bye)
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
	if !post(message{from: c}) {
		return
	}
	in := newLines(conn)
	for {
		var r request
		if err := in.next(&r); err != nil {
			break
		}
		if !post(message{from: c, req: &r}) {
			return
		}
	}
	post(message{from: c, gone: true})
}

func listen(path string) (net.Listener, error) {
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
	return removing{ln, path}, nil
}

// removing removes the socket when the listener is closed.
type removing struct {
	net.Listener
	path string
}

func (l removing) Close() error {
	os.Remove(l.path)
	return l.Listener.Close()
}

func splitPath(path string) (dir, base string) { return filepath.Dir(path), filepath.Base(path) }
