package admission

// order is the order in which waiting requests are admitted: one lane per team,
// the lanes in a ring. It takes no lock and reads no clock.
type order struct {
	teamQueues map[string]*teamQueue
	turn       *teamQueue // whose first request is admitted next; nil when the order is empty
	count      int
	bytes      int64
}

// teamQueue is one team's waiting requests in order of arrivao. Places are numbered
// as they are given out; a Fenwick tree counts the places still taken, so that
// the position of any request costs O(log n) although others leave from the
// middle. Places of requests that left are skipped, and removed when they are
// the greater part.
type teamQueue struct {
	team       string
	prev, next *teamQueue // ring of lanes that are not empty
	requests   []*Request
	waiting    []int32 // Fenwick tree over place, one-based
	head       int     // the first place that may be taken
	count      int
}

func (o *order) add(r *Request) {
	if o.teamQueues == nil {
		o.teamQueues = map[string]*teamQueue{}
	}
	a := o.teamQueues[r.Team]
	if a == nil {
		a = &teamQueue{team: r.Team}
		o.teamQueues[r.Team] = a
		if o.turn == nil {
			a.prev, a.next, o.turn = a, a, a
		} else { // behind the lanes that have a turn to come
			a.prev, a.next = o.turn.prev, o.turn
			a.prev.next, o.turn.prev = a, a
		}
	}
	r.teamQueue, r.at = a, a.put(r)
	o.count++
	o.bytes += r.Bytes
}

func (o *order) remove(r *Request) {
	a := r.teamQueue
	a.clear(r.at)
	r.teamQueue = nil
	o.count--
	o.bytes -= r.Bytes
	if a.count > 0 {
		return
	}
	delete(o.teamQueues, a.team)
	if a.next == a {
		o.turn, o.teamQueues = nil, nil
		return
	}
	a.prev.next, a.next.prev = a.next, a.prev
	if o.turn == a {
		o.turn = a.next
	}
}

// peek is the request whose turn it is, nil if the order is empty.
func (o *order) peek() *Request {
	if o.turn == nil {
		return nil
	}
	return o.turn.first()
}

// take removes the request whose turn it is and passes the turn to the next team.
func (o *order) take() *Request {
	r := o.peek()
	if r != nil {
		o.turn = o.turn.next
		o.remove(r)
	}
	return r
}

// position counts the turns until r is admitted: 1 is the next.
func (o *order) position(r *Request) int {
	k := r.teamQueue.taken(r.at) // requests of its own team before it
	n := k + 1
	before := true // lanes between the current turn and its own have one turn more
	for a, i := o.turn, 0; i < len(o.teamQueues); a, i = a.next, i+1 {
		switch {
		case a == r.teamQueue:
			before = false
		case before:
			n += min(a.count, k+1)
		default:
			n += min(a.count, k)
		}
	}
	return n
}

func (a *teamQueue) put(r *Request) int {
	if len(a.requests) == cap(a.requests) {
		a.pack()
	}
	at := len(a.requests)
	a.requests = append(a.requests, r)
	for len(a.waiting) <= at+1 {
		a.waiting = append(a.waiting, 0)
		if i := len(a.waiting) - 1; i > 0 { // the new node counts the places that it spans
			a.waiting[i] = int32(a.taken(i-1) - a.taken(i-(i&-i)))
		}
	}
	a.addAt(at, 1)
	a.count++
	return at
}

func (a *teamQueue) clear(at int) {
	a.requests[at] = nil
	a.addAt(at, -1)
	a.count--
	for a.head < len(a.requests) && a.requests[a.head] == nil {
		a.head++
	}
}

func (a *teamQueue) first() *Request { return a.requests[a.head] }

// taken is how many of the first n places are taken.
func (a *teamQueue) taken(n int) (sum int) {
	for i := n; i > 0; i -= i & -i {
		sum += int(a.waiting[i])
	}
	return sum
}

func (a *teamQueue) addAt(at int, by int32) {
	for i := at + 1; i < len(a.waiting); i += i & -i {
		a.waiting[i] += by
	}
}

// pack removes the places of requests that left, or doubles the lane. Either
// moves at most as many requests as arrived or left since the last time.
func (a *teamQueue) pack() {
	size := max(8, 2*a.count)
	packed := make([]*Request, 0, size)
	for _, r := range a.requests[a.head:] {
		if r != nil {
			r.at = len(packed)
			packed = append(packed, r)
		}
	}
	a.requests, a.head = packed, 0
	a.waiting = make([]int32, len(packed)+1, size+1)
	for i := 1; i < len(a.waiting); i++ {
		a.waiting[i]++
		if j := i + i&-i; j < len(a.waiting) {
			a.waiting[j] += a.waiting[i]
		}
	}
}
