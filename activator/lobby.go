package activator

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/balance"
	"github.com/thaw-dev/thaw/activator/gate"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Lobby is where the requests for one function stand and from where they are
// given to its replicas: the gate, the balance and the wake under way, with the
// rules between them. It does no I/O, reads no clock and starts nothing, so the
// same rules hold for requests over HTTP and for those of the simulator. The
// zero value is that of a function nobody has published; its methods may be
// called concurrently.
type Lobby struct {
	// News, set before anything else, is told that the demand has changed: once,
	// and again only after Demand was asked for. It may be told with locks held;
	// it notes it and returns.
	News gate.Listener

	gate  gate.Gate
	set   balance.Set
	wake  wake
	ready atomic.Int64 // when a replica was last READY, in nanoseconds of the clock; 0 never
	told  atomic.Bool  // News was
}

// mark comes after every change of the demand. Nearly always it is one load.
func (l *Lobby) mark() {
	if !l.told.Load() && l.News != nil && !l.told.Swap(true) {
		l.News.Told()
	}
}

// wake is what is known of the wake under way.
type wake struct {
	mu    sync.Mutex
	asked bool   // Wake was called and nothing has come of it yet
	id    string // of the cold start, as Wake told
}

// settle forgets a wake that has come to something, or to nothing.
func (w *wake) settle() {
	w.mu.Lock()
	w.asked = false
	w.mu.Unlock()
}

// Publish takes in picture f, which follows before (nil: f is the first).
// Waiters that a new READY replica has slots for are let through, and waiters
// of a failed start told, before it returns.
func (l *Lobby) Publish(before, f *snapshot.Snapshot, now time.Time) {
	if m := f.Model; m != nil && (before == nil || before.Model != m) {
		l.gate.Bound(gate.Bounds{Requests: m.Spec.Queue.Requests, Bytes: int64(m.Spec.Queue.Bytes)})
	}
	if before != nil || len(f.Replicas) > 0 {
		var few [4]balance.Target
		targets := few[:0]
		for i := range f.Replicas {
			targets = append(targets, balance.Target{ID: f.Replicas[i].ID, Slots: f.SlotsOf(&f.Replicas[i]), Adapters: f.Replicas[i].Adapters})
		}
		l.set.Update(targets)
	}
	if len(f.Replicas) > 0 || before != nil && len(before.Replicas) > 0 {
		l.ready.Store(now.UnixNano())
	}
	if len(f.Replicas) > 0 || f.Failure != nil || before != nil && before.Starting() && !f.Starting() {
		l.wake.settle()
	}
	l.Recap(now)
	if before == nil {
		return
	}
	switch {
	case len(f.Replicas) > 0:
	case breakerOpen(f, now):
		l.Turn(loadFailedError(f))
	default:
		if e := quotaError(f, now); e != nil {
			l.Turn(e)
		}
	}
}

// Close turns everyone away who waits for a function that is gone.
func (l *Lobby) Close(name functions.Name) {
	l.gate.Bound(gate.Bounds{})
	l.gate.Resize(0)
	l.set.Update(nil)
	l.Turn(openai.New(openai.ModelNotFound, "The model `"+name.Short()+"` has been removed."))
}

// Recap tells the gate what the replicas take, some of them broken maybe.
func (l *Lobby) Recap(now time.Time) {
	if l.gate.Resize(l.set.Capacity(now)) > 0 {
		l.mark()
	}
}

// Turn turns everyone who waits away.
func (l *Lobby) Turn(why *openai.Error) {
	if l.gate.Turn(why) > 0 {
		l.mark()
	}
}

// Enter asks for a slot; see gate.Gate. Whoever waits is decided about next.
func (l *Lobby) Enter(w *gate.Waiter, team string, bytes int64, now time.Time) gate.Answer {
	a := l.gate.Enter(w, team, bytes, now)
	if a == gate.Waits { // who is through picks a replica next, or leaves
		l.mark()
	}
	return a
}

// Full is the answer to whom the gate had no place for.
func (l *Lobby) Full(f *snapshot.Snapshot, now time.Time) *openai.Error {
	if len(f.Replicas) == 0 && breakerOpen(f, now) {
		return loadFailedError(f)
	}
	return queueFullError()
}

// Decide says what becomes of a request that waits. f is read after it stood in
// line: whoever publishes a failure after that sees it. alone reports whether
// nobody else waits: then a wake is asked for anew, because an earlier one may
// have been called off.
func (l *Lobby) Decide(f *snapshot.Snapshot, p ClientTimeouts, now time.Time) (d Decision, alone bool) {
	load := l.gate.Load()
	return Decide(f, load, p, now), load.Queued == 1
}

// Wake has the platform asked for a first replica, once however many wait. Who
// begins a cold start is admitted to one first, and is told if it is not; later
// requests join it. again asks anew even so: a refused request's retry is the
// only demand there is. The id is that of the cold start, "" if it is not known
// yet; see ColdStart.
func (l *Lobby) Wake(f *snapshot.Snapshot, again bool, admit func() *openai.Error, ask func() (id string)) (id string, refused *openai.Error) {
	w := &l.wake
	w.mu.Lock()
	first := !w.asked
	if first && !f.Starting() {
		if e := admit(); e != nil {
			w.mu.Unlock()
			return "", e
		}
	}
	w.asked = true
	if !first && !again {
		id = w.id
		w.mu.Unlock()
		return id, nil
	}
	if first {
		w.id = "" // that of an earlier one; who asks meanwhile learns it later
	}
	w.mu.Unlock()
	id = ask()
	w.mu.Lock()
	if id != "" {
		w.id = id
	}
	w.mu.Unlock()
	return id, nil
}

// ColdStart is the id of the cold start that was asked for last.
func (l *Lobby) ColdStart() string {
	l.wake.mu.Lock()
	defer l.wake.mu.Unlock()
	return l.wake.id
}

// Pick takes a slot on a replica; see balance.Set. Done gives it back.
func (l *Lobby) Pick(a balance.Ask, now time.Time) (id string, ok bool) {
	id, ok = l.set.Pick(a, now)
	l.mark()
	return id, ok
}

// Claim takes a waiter out of the line and a slot on a replica that has answered it
// already. false: it does not wait any more.
func (l *Lobby) Claim(w *gate.Waiter, id string) bool {
	if !l.gate.Claim(w) {
		return false
	}
	l.set.Take(id)
	l.mark()
	return true
}

// Done gives back the slot of a pick or a claim, before Leave.
func (l *Lobby) Done(id string) { l.set.Done(id) }

// Leave ends a stay, waiting or through. It reports whether the platform is to
// be nudged: nobody waits any more, nobody having been let through.
func (l *Lobby) Leave(w *gate.Waiter, now time.Time) (deserted bool) {
	deserted = l.gate.Leave(w, now)
	l.mark()
	if !deserted {
		return false
	}
	l.wake.settle()
	return true
}

// Break leaves a replica alone that failed a request. Recap is due at once and
// after balance.CoolDown.
func (l *Lobby) Break(id string, now time.Time) { l.set.Break(id, now) }

// Expired is the answer to a request that has waited since for as long as it
// may.
func (l *Lobby) Expired(f *snapshot.Snapshot, since, now time.Time) *openai.Error {
	if len(f.Replicas) > 0 || l.ready.Load() >= since.UnixNano() {
		return openai.New(openai.QueueTimeout, "")
	}
	return loadingError(f, now)
}

// Load is what the gate holds now.
func (l *Lobby) Load() gate.Load { return l.gate.Load() }

// Demand is the interest in the function now. What changes after it is told to
// News again.
func (l *Lobby) Demand(name functions.Name) Demand {
	l.told.Store(false) // before the look: what it does not see is told
	g := l.gate.Load()
	d := Demand{Name: name, Active: g.Active, Queued: g.Queued, Oldest: g.Oldest, LastEnd: g.LastEnd}
	if g.Queued > 0 {
		d.Teams = map[string]int{}
		l.gate.Teams(func(team string, n int) { d.Teams[team] = n })
	}
	return d
}

// InFlight of a replica, also of one that takes no new requests.
func (l *Lobby) InFlight(id string) int { return l.set.InFlight(id) }

func queueFullError() *openai.Error {
	return openai.New(openai.QueueFull, "").After(time.Second + time.Duration(rand.Int64N(int64(9*time.Second))))
}
