package supervisor

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

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
	o.Orphan, o.Grace = cmp.Or(max(o.Orphan, 0), DefaultOrphan), cmp.Or(max(o.Grace, 0), DefaultGrace)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	lock, err := acquireLock(o.Dir, os.O_CREATE)
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
func (s *supervisor) run(ctx context.Context) error {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)

	s.orphan = time.NewTimer(s.o.Orphan)
	s.kill, s.strays, s.owners = stoppedTimer(), stoppedTimer(), stoppedTimer()
	for _, t := range []*time.Timer{s.orphan, s.kill, s.strays, s.owners} {
		defer t.Stop()
	}
	created := watchShm(s.stop)
	done := ctx.Done()
	for {
		select {
		case <-done:
			done = nil
			s.end(s.o.Grace, "told to end")
		case <-s.orphan.C:
			if len(s.clients) == 0 {
				s.end(s.o.Grace, "no agent for "+s.o.Orphan.String())
			}
		case <-s.kill.C:
			s.signalAll(syscall.SIGKILL)
			s.killStrays()
			s.kill.Reset(killAgain)
		case <-children:
			if s.reap() {
				s.strays.Reset(strayKillDelay)
			}
		case <-s.strays.C:
			s.killStrays()
		case name, ok := <-created:
			if !ok {
				created = nil
			} else {
				s.addShared(name)
			}
		case <-s.owners.C:
			if d, more := s.findOwners(time.Now()); more {
				s.owners.Reset(d)
			}
		case p := <-s.drained:
			s.reportExit(p)
		case f := <-s.forked:
			r := s.finishFork(f)
			r.Seq = f.seq
			f.from.send(r)
			s.strays.Reset(strayKillDelay)
		case e := <-s.inbox:
			s.onClient(e)
		}
		if s.ending && s.allGone() {
			for c := range s.clients {
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
func (s *supervisor) onClient(e clientEvent) {
	switch {
	case e.gone:
		delete(s.clients, e.from)
		if len(s.clients) == 0 {
			s.orphan.Reset(s.o.Orphan)
		}
	case e.req == nil && s.ending:
		e.from.close() // without a greeting: its agent starts the next supervisor
	case e.req == nil:
		s.clients[e.from] = true
		s.orphan.Stop()
		e.from.send(reply{Hello: &hello{Protocol: Protocol, PID: os.Getpid(), Dir: s.o.Dir}})
	case e.req.Op == "end":
		e.from.send(reply{Seq: e.req.Seq})
		s.end(time.Duration(e.req.Grace)*time.Millisecond, "requested by the agent")
	default:
		if r, later := s.handle(e.from, e.req); !later {
			r.Seq = e.req.Seq
			e.from.send(r)
		}
	}
}

// end sends SIGTERM to every process, SIGKILL after grace, and refuses new ones.
func (s *supervisor) end(grace time.Duration, reason string) {
	if s.ending {
		return
	}
	s.o.Log.Info("ending every process", "why", reason, "running", len(s.byPID))
	s.ending = true
	s.signalAll(syscall.SIGTERM)
	s.kill.Reset(grace)
}

func (s *supervisor) signalAll(sig syscall.Signal) {
	for _, p := range s.byPID {
		syscall.Kill(-p.PID, sig)
	}
}

// allGone reports whether every started process and stray is gone.
func (s *supervisor) allGone() bool {
	if len(s.byPID) > 0 || len(s.forks) > 0 {
		return false
	}
	for _, p := range s.byID {
		if !p.reported {
			return false
		}
	}
	return s.killStrays() == 0
}
