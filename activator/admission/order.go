package admission

import "time"

// order is the order in which waiting requests are admitted: teams take turns, in a ring,
// and in its turn a team has the first of its requests of the highest priority. It takes
// no lock and reads no clock.
type order struct {
	teamQueues map[string]*teamQueue
	turn       *teamQueue // whose first request is admitted next; nil when the order is empty
	count      int
	bytes      int64
}

// teamQueue is one team's waiting requests, high ones before the others.
type teamQueue struct {
	team       string
	prev, next *teamQueue // ring of teams that have requests here
	lanes      [2]lane
	count      int
}

// lane is the waiting requests of one team and priority in order of arrival. Places are
// numbered as they are given out; a Fenwick tree counts the places still taken, so that
// the position of any request costs O(log n) although others leave from the
// middle. Places of requests that left are skipped, and removed when they are
// the greater part.
type lane struct {
	requests []*Request
	waiting  []int32 // Fenwick tree over place, one-based
	head     int     // the first place that may be taken
	count    int
}

// laneOf is the index of the lane in which r waits.
func laneOf(r *Request) int {
	if r.Priority == High {
		return 0
	}
	return 1
}

func (o *order) add(r *Request) {
	if o.teamQueues == nil {
		o.teamQueues = map[string]*teamQueue{}
	}
	q := o.teamQueues[r.Team]
	if q == nil {
		q = &teamQueue{team: r.Team}
		o.teamQueues[r.Team] = q
		if o.turn == nil {
			q.prev, q.next, o.turn = q, q, q
		} else { // behind the teams that have a turn to come
			q.prev, q.next = o.turn.prev, o.turn
			q.prev.next, o.turn.prev = q, q
		}
	}
	r.teamQueue, r.at = q, q.lanes[laneOf(r)].put(r)
	q.count++
	o.count++
	o.bytes += r.Bytes
}

func (o *order) remove(r *Request) {
	q := r.teamQueue
	q.lanes[laneOf(r)].clear(r.at)
	r.teamQueue = nil
	q.count--
	o.count--
	o.bytes -= r.Bytes
	if q.count > 0 {
		return
	}
	delete(o.teamQueues, q.team)
	if q.next == q {
		o.turn, o.teamQueues = nil, nil
		return
	}
	q.prev.next, q.next.prev = q.next, q.prev
	if o.turn == q {
		o.turn = q.next
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

// newest is the last to arrive of the team that has the most requests here, nil if the
// order is empty.
func (o *order) newest() *Request {
	if o.turn == nil {
		return nil
	}
	most := o.turn
	for q := most.next; q != o.turn; q = q.next {
		if q.count > most.count {
			most = q
		}
	}
	l := &most.lanes[1]
	if l.count == 0 {
		l = &most.lanes[0]
	}
	return l.requests[len(l.requests)-1]
}

// oldest is the arrival of the request that has waited for longest; zero if none waits.
func (o *order) oldest() (at time.Time) {
	for q, i := o.turn, 0; i < len(o.teamQueues); q, i = q.next, i+1 {
		for k := range q.lanes {
			if l := &q.lanes[k]; l.count > 0 && (at.IsZero() || l.first().since.Before(at)) {
				at = l.first().since
			}
		}
	}
	return at
}

// position counts the turns until r is admitted: 1 is the next.
func (o *order) position(r *Request) int {
	k := 0 // requests of its own team before it
	if i := laneOf(r); i > 0 {
		k = r.teamQueue.lanes[0].count
	}
	k += r.teamQueue.lanes[laneOf(r)].taken(r.at)
	n := k + 1
	before := true // teams between the current turn and its own have one turn more
	for q, i := o.turn, 0; i < len(o.teamQueues); q, i = q.next, i+1 {
		switch {
		case q == r.teamQueue:
			before = false
		case before:
			n += min(q.count, k+1)
		default:
			n += min(q.count, k)
		}
	}
	return n
}

// first is the request that its team has in its next turn.
func (q *teamQueue) first() *Request {
	if q.lanes[0].count > 0 {
		return q.lanes[0].first()
	}
	return q.lanes[1].first()
}

func (l *lane) put(r *Request) int {
	if len(l.requests) == cap(l.requests) {
		l.pack()
	}
	at := len(l.requests)
	l.requests = append(l.requests, r)
	for len(l.waiting) <= at+1 {
		l.waiting = append(l.waiting, 0)
		if i := len(l.waiting) - 1; i > 0 { // the new node counts the places that it spans
			l.waiting[i] = int32(l.taken(i-1) - l.taken(i-(i&-i)))
		}
	}
	l.addAt(at, 1)
	l.count++
	return at
}

func (l *lane) clear(at int) {
	l.requests[at] = nil
	l.addAt(at, -1)
	l.count--
	for l.head < len(l.requests) && l.requests[l.head] == nil {
		l.head++
	}
	for n := len(l.requests); n > l.head && l.requests[n-1] == nil; n-- {
		l.requests = l.requests[:n-1] // newest reads the last place
	}
}

func (l *lane) first() *Request { return l.requests[l.head] }

// taken is how many of the first n places are taken.
func (l *lane) taken(n int) (sum int) {
	for i := n; i > 0; i -= i & -i {
		sum += int(l.waiting[i])
	}
	return sum
}

func (l *lane) addAt(at int, by int32) {
	for i := at + 1; i < len(l.waiting); i += i & -i {
		l.waiting[i] += by
	}
}

// pack removes the places of requests that left, or doubles the lane. Either
// moves at most as many requests as arrived or left since the last time.
func (l *lane) pack() {
	size := max(8, 2*l.count)
	packed := make([]*Request, 0, size)
	for _, r := range l.requests[l.head:] {
		if r != nil {
			r.at = len(packed)
			packed = append(packed, r)
		}
	}
	l.requests, l.head = packed, 0
	l.waiting = make([]int32, len(packed)+1, size+1)
	for i := 1; i < len(l.waiting); i++ {
		l.waiting[i]++
		if j := i + i&-i; j < len(l.waiting) {
			l.waiting[j] += l.waiting[i]
		}
	}
}
