package gate

import (
	"sync"
	"time"
)

// Bounds of a gate. Zero is zero: nobody may wait.
type Bounds struct {
	Requests int
	Bytes    int64
}

// Answer says what became of a request at the gate.
type Answer uint8

// The answers.
const (
	Through Answer = iota // it holds a slot
	Waits                 // it stands in line
	Full                  // the line has no place, or not enough bytes
	Closed                // the gate was closed with a verdict; see Waiter.Verdict
)

// Listener hears what became of a waiter in the call that let it through or
// turned it away, with the gate locked: it notes it and returns.
type Listener interface{ Told() }

// Waiter is one request at a gate, from Enter to Leave. The zero value is
// ready; it may be used again after Leave. All but Listener, Verdict and Done
// are the gate's.
type Waiter struct {
	// Listener, set before Enter, is told in place of Done, which then stays
	// nil: for whoever has no goroutine to wait in.
	Listener Listener

	team    string
	bytes   int64
	since   time.Time
	lane    *lane
	at      int
	held    bool          // holds a slot
	done    chan struct{} // made when it waits; closed when it need not any more
	verdict any
}

// Done is closed when the waiter was let through or turned away. It is nil,
// which blocks for ever, for a request that never waited or has a Listener.
func (w *Waiter) Done() <-chan struct{} { return w.done }

// Verdict is nil once let through, and what Turn was given otherwise. It may
// be read after Done is closed or the Listener was told.
func (w *Waiter) Verdict() any { return w.verdict }

// tell says that the wait is over.
func (w *Waiter) tell() {
	if w.Listener != nil {
		w.Listener.Told()
		return
	}
	close(w.done)
}

// Gate of one function. The zero value has no capacity and no room: Resize
// and Bound tell it.
type Gate struct {
	mu       sync.Mutex
	line     *line // nil while nobody waits
	bounds   Bounds
	capacity int
	active   int
	lastEnd  time.Time
	changed  chan struct{} // nil while nobody listens
}

// Bound sets how many may wait. Those who wait already stay.
func (g *Gate) Bound(b Bounds) {
	g.mu.Lock()
	g.bounds = b
	g.mu.Unlock()
}

// Resize tells how many may be through at once and lets waiters through at
// once; it returns how many. More than n may be through for a while when n
// shrinks.
func (g *Gate) Resize(n int) (released int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.capacity = n
	return g.release()
}

func (g *Gate) release() (n int) {
	for g.line != nil && g.active < g.capacity {
		w := g.line.take()
		if g.line.count == 0 {
			g.line = nil
		}
		w.held = true
		g.active++
		n++
		w.tell()
	}
	return n
}

// Enter asks for a slot. Where the answer is Waits, w.Done tells when; Leave
// must be called exactly once for Through and Waits.
func (g *Gate) Enter(w *Waiter, team string, bytes int64, now time.Time) Answer {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.line == nil && g.active < g.capacity {
		g.active++
		*w = Waiter{Listener: w.Listener, team: team, held: true, since: now}
		return Through
	}
	n, b := 0, int64(0)
	if g.line != nil {
		n, b = g.line.count, g.line.bytes
	}
	if n >= g.bounds.Requests || bytes > g.bounds.Bytes-b {
		return Full
	}
	if g.line == nil {
		g.line = &line{}
	}
	*w = Waiter{Listener: w.Listener, team: team, bytes: bytes, since: now}
	if w.Listener == nil {
		w.done = make(chan struct{})
	}
	g.line.add(w)
	return Waits
}

// Claim gives a waiter a slot out of turn: what it waits for has come another way.
// More may be through than there is capacity for a while. false: it does not wait any
// more, let through or turned away.
func (g *Gate) Claim(w *Waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.lane == nil {
		return false
	}
	g.line.remove(w)
	if g.line.count == 0 {
		g.line = nil
	}
	w.held = true
	g.active++
	return true
}

// Leave ends a request's stay, waiting or through, and lets the next through.
// It reports whether the line became empty by it, nobody having been let
// through. Calling it again does nothing.
func (g *Gate) Leave(w *Waiter, now time.Time) (deserted bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case w.lane != nil:
		g.line.remove(w)
		if g.line.count == 0 {
			g.line = nil
			return g.active == 0
		}
	case w.held:
		w.held = false
		g.active--
		g.lastEnd = now
		g.release()
	}
	return false
}

// Turn turns everyone who waits away with a verdict.
func (g *Gate) Turn(verdict any) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.line != nil {
		w := g.line.take()
		if g.line.count == 0 {
			g.line = nil
		}
		w.verdict = verdict
		n++
		w.tell()
	}
	return n
}

// Position of a waiter, one for the next; 0 for one who does not wait.
func (g *Gate) Position(w *Waiter) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.lane == nil {
		return 0
	}
	return g.line.position(w)
}

// Changed is closed at the next Tell.
func (g *Gate) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return g.changed
}

// Tell wakes everyone who listens on Changed: there is news worth a comment.
func (g *Gate) Tell() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// Load is what a gate holds now.
type Load struct {
	Active, Queued int
	Bytes          int64
	Capacity       int
	Oldest         time.Time // arrival of the longest waiter; zero if none
	LastEnd        time.Time // when the last request left, zero if none did
}

// Free reports whether a request would be let through at once.
func (l Load) Free() bool { return l.Queued == 0 && l.Active < l.Capacity }

// Idle reports whether nobody is here and nobody was.
func (l Load) Idle() bool { return l.Active == 0 && l.Queued == 0 }

// Load of the gate now.
func (g *Gate) Load() Load {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := Load{Active: g.active, Capacity: g.capacity, LastEnd: g.lastEnd}
	if g.line == nil {
		return l
	}
	l.Queued, l.Bytes = g.line.count, g.line.bytes
	for a := g.line.turn; ; {
		if t := a.first().since; l.Oldest.IsZero() || t.Before(l.Oldest) {
			l.Oldest = t
		}
		if a = a.next; a == g.line.turn {
			return l
		}
	}
}

// Teams calls yield with how many wait per team, whose turn is next first.
func (g *Gate) Teams(yield func(team string, queued int)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.line == nil {
		return
	}
	for a := g.line.turn; ; {
		yield(a.team, a.count)
		if a = a.next; a == g.line.turn {
			return
		}
	}
}
