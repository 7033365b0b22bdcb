package gate

// line is the order of the waiters: one lane per team, the lanes in a ring.
// It is pure: no lock, no clock, no channel.
type line struct {
	lanes map[string]*lane
	turn  *lane // whose waiter is let through next; nil when nobody waits
	count int
	bytes int64
}

// lane is one team's waiters in order of arrival. Places are numbered as they
// are given out; a Fenwick tree counts the places still taken, so that the
// position of any waiter is known in log n although others leave from the
// middle. Places of those who left are skipped, and cleared away when they are
// the greater part.
type lane struct {
	team       string
	prev, next *lane // ring of lanes that have waiters
	place      []*Waiter
	tree       []int32 // Fenwick over place, one-based
	head       int     // no place before it is taken
	count      int
}

func (l *line) add(w *Waiter) {
	if l.lanes == nil {
		l.lanes = map[string]*lane{}
	}
	a := l.lanes[w.team]
	if a == nil {
		a = &lane{team: w.team}
		l.lanes[w.team] = a
		if l.turn == nil {
			a.prev, a.next, l.turn = a, a, a
		} else { // behind everyone who has a turn to come
			a.prev, a.next = l.turn.prev, l.turn
			a.prev.next, l.turn.prev = a, a
		}
	}
	w.lane, w.at = a, a.put(w)
	l.count++
	l.bytes += w.bytes
}

func (l *line) remove(w *Waiter) {
	a := w.lane
	a.clear(w.at)
	w.lane = nil
	l.count--
	l.bytes -= w.bytes
	if a.count > 0 {
		return
	}
	delete(l.lanes, a.team)
	if a.next == a {
		l.turn, l.lanes = nil, nil
		return
	}
	a.prev.next, a.next.prev = a.next, a.prev
	if l.turn == a {
		l.turn = a.next
	}
}

// take removes the waiter whose turn it is and passes the turn on.
func (l *line) take() *Waiter {
	a := l.turn
	if a == nil {
		return nil
	}
	w := a.first()
	l.turn = a.next
	l.remove(w)
	return w
}

// position of a waiter, one for who is next: how many turns until its own.
func (l *line) position(w *Waiter) int {
	k := w.lane.rank(w.at) // waiters of its own team before it
	n := k + 1
	before := true // lanes between the turn and its own have one turn more
	for a, i := l.turn, 0; i < len(l.lanes); a, i = a.next, i+1 {
		switch {
		case a == w.lane:
			before = false
		case before:
			n += min(a.count, k+1)
		default:
			n += min(a.count, k)
		}
	}
	return n
}

func (a *lane) put(w *Waiter) int {
	if len(a.place) == cap(a.place) {
		a.pack()
	}
	at := len(a.place)
	a.place = append(a.place, w)
	for len(a.tree) <= at+1 {
		a.tree = append(a.tree, 0)
		if i := len(a.tree) - 1; i > 0 { // the new node counts what it spans
			a.tree[i] = int32(a.span(i-1) - a.span(i-(i&-i)))
		}
	}
	a.bump(at, 1)
	a.count++
	return at
}

func (a *lane) clear(at int) {
	a.place[at] = nil
	a.bump(at, -1)
	a.count--
	for a.head < len(a.place) && a.place[a.head] == nil {
		a.head++
	}
}

func (a *lane) first() *Waiter { return a.place[a.head] }

// rank is how many places before at are taken.
func (a *lane) rank(at int) int { return a.span(at) }

func (a *lane) span(n int) (sum int) {
	for i := n; i > 0; i -= i & -i {
		sum += int(a.tree[i])
	}
	return sum
}

func (a *lane) bump(at int, by int32) {
	for i := at + 1; i < len(a.tree); i += i & -i {
		a.tree[i] += by
	}
}

// pack makes room: places of those who left go, or the lane doubles. Either is
// paid for by as many arrivals or departures as it moves waiters.
func (a *lane) pack() {
	size := max(8, 2*a.count)
	place := make([]*Waiter, 0, size)
	for _, w := range a.place[a.head:] {
		if w != nil {
			w.at = len(place)
			place = append(place, w)
		}
	}
	a.place, a.head = place, 0
	a.tree = make([]int32, len(place)+1, size+1)
	for i := 1; i < len(a.tree); i++ {
		a.tree[i]++
		if j := i + i&-i; j < len(a.tree) {
			a.tree[j] += a.tree[i]
		}
	}
}
