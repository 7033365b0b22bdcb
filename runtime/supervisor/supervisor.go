package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// Options of a supervisor.
type Options struct {
	// Socket is the unix socket it listens on.
	Socket string
	// Dir is its folder, mode 0700: lock, process id, logs.
	Dir string
	// Orphan is how long it runs without a connected agent; 0 is DefaultOrphan.
	Orphan time.Duration
	// Grace is the time between SIGTERM and SIGKILL at its end; 0 is DefaultGrace.
	Grace time.Duration
	// Log records starts and ends of processes; nil discards.
	Log *slog.Logger
}

// Defaults of Options.
const (
	DefaultOrphan = 60 * time.Second
	DefaultGrace  = 2 * time.Second
)

// logDrainWait bounds the wait for the last lines of a process that has ended.
const logDrainWait = 100 * time.Millisecond

// strayKillDelay is the pause between an exit and the search for strays, which reads
// every process and must not delay the report of the exit.
const strayKillDelay = 10 * time.Millisecond

// killAgain is how often SIGKILL is repeated at the end.
const killAgain = 200 * time.Millisecond

// keepExits bounds the records of processes that have ended.
const keepExits = 256

// idVariable marks every descendant of a process with its id.
const idVariable = "THAW_SUPERVISED="

// Run runs a supervisor until ctx ends or no agent was connected for Orphan; by then
// every group it started is gone. It reaps every child of this process, so the
// process must be its own. It returns ErrRunning if the folder has a supervisor.
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
	// No process uses the scratch folders now, nor after the end.
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
	// The death signal of a child is tied to the thread that forked it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return k.run(ctx)
}

// supervisor is the state of Run; the goroutine of run owns all of it.
type supervisor struct {
	o       Options
	byID    map[string]*process
	byPID   map[int]*process // running ones
	clients map[*client]bool
	ending  bool
	order   []string // ids of ended processes, oldest first
	spawned int
	ooms    int64 // the last value of oomKills
	// unowned are new files in shared memory without a known owner.
	unowned []sharedEntry
	ended   time.Time // when the last process ended

	forks      map[string]*forking        // spawns through parents, by id
	earlyExits map[int]syscall.WaitStatus // exits of children that a parent has not named yet

	inbox   chan clientEvent
	drained chan *process
	forked  chan *forking
	stop    chan struct{} // closed when run has returned

	orphan, kill, strays, owners *time.Timer // when to end, send SIGKILL, look for strays and for owners of shared memory
}

type process struct {
	Running
	log      *outputLog
	reported bool              // the exit is complete and was sent
	scratch  string            // folder that is removed with it
	release  func()            // ends the thread that started it; nil for a fork
	shared   map[string]uint64 // inodes of files in shared memory that its group uses, by name
}

// run handles signals, timers and requests until everything has ended.
func (k *supervisor) run(ctx context.Context) error {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)

	k.orphan = time.NewTimer(k.o.Orphan)
	k.kill, k.strays, k.owners = stoppedTimer(), stoppedTimer(), stoppedTimer()
	for _, t := range []*time.Timer{k.orphan, k.kill, k.strays, k.owners} {
		defer t.Stop()
	}
	created := watchShm(k.stop)
	done := ctx.Done()
	for {
		select {
		case <-done:
			done = nil
			k.end(k.o.Grace, "told to end")
		case <-k.orphan.C:
			if len(k.clients) == 0 {
				k.end(k.o.Grace, "no agent for "+k.o.Orphan.String())
			}
		case <-k.kill.C:
			k.signalAll(syscall.SIGKILL)
			k.killStrays()
			k.kill.Reset(killAgain)
		case <-children:
			if k.reap() {
				k.strays.Reset(strayKillDelay)
			}
		case <-k.strays.C:
			k.killStrays()
		case name, ok := <-created:
			if !ok {
				created = nil
			} else {
				k.addShared(name)
			}
		case <-k.owners.C:
			if d, more := k.findOwners(time.Now()); more {
				k.owners.Reset(d)
			}
		case p := <-k.drained:
			k.reportExit(p)
		case f := <-k.forked:
			r := k.finishFork(f)
			r.Seq = f.seq
			f.from.send(r)
			k.strays.Reset(strayKillDelay)
		case e := <-k.inbox:
			k.onClient(e)
		}
		if k.ending && k.allGone() {
			for c := range k.clients {
				c.close()
			}
			return nil
		}
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// onClient handles a connection that was opened or closed, or its request.
func (k *supervisor) onClient(e clientEvent) {
	switch {
	case e.gone:
		delete(k.clients, e.from)
		if len(k.clients) == 0 {
			k.orphan.Reset(k.o.Orphan)
		}
	case e.req == nil && k.ending:
		e.from.close() // without a greeting: its agent starts the next supervisor
	case e.req == nil:
		k.clients[e.from] = true
		k.orphan.Stop()
		e.from.send(reply{Hello: &hello{Protocol: Protocol, PID: os.Getpid(), Dir: k.o.Dir, Confines: true}})
	case e.req.Op == "end":
		e.from.send(reply{Seq: e.req.Seq})
		k.end(time.Duration(e.req.Grace)*time.Millisecond, "requested by the agent")
	default:
		if r, later := k.handle(e.from, e.req); !later {
			r.Seq = e.req.Seq
			e.from.send(r)
		}
	}
}

// end sends SIGTERM to every process, SIGKILL after grace, and refuses new ones.
func (k *supervisor) end(grace time.Duration, reason string) {
	if k.ending {
		return
	}
	k.o.Log.Info("ending every process", "why", reason, "running", len(k.byPID))
	k.ending = true
	k.signalAll(syscall.SIGTERM)
	k.kill.Reset(grace)
}

func (k *supervisor) signalAll(sig syscall.Signal) {
	for _, p := range k.byPID {
		syscall.Kill(-p.PID, sig)
	}
}

// allGone reports whether every started process and stray is gone.
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
