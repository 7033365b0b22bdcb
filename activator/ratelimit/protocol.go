package ratelimit

import (
	"math"
	"time"
)

// Kind is what a limit counts.
type Kind uint8

const (
	Requests   Kind = iota // that begin, a minute
	Tokens                 // a minute, charged afterwards: a bucket may be in debt
	ColdStarts             // an hour
	Concurrent             // requests at once
	Held                   // requests that wait at once
	kindCount  = iota
)

// Span is how long a limit takes to refill; 0: its units are places, returned when a
// request ends.
func (k Kind) Span() time.Duration {
	switch k {
	case Requests, Tokens:
		return time.Minute
	case ColdStarts:
		return time.Hour
	}
	return 0
}

const (
	// AllotmentWait is how long a request waits for an allotment.
	AllotmentWait = 250 * time.Millisecond
	// PartitionGrace is how long a disconnected activator keeps its places and its share,
	// unless it is known to be dead.
	PartitionGrace = time.Minute

	prefill      = 250 * time.Millisecond // a bucket is filled ahead with what it spends in this time
	recallEvery  = 50 * time.Millisecond  // between two recalls of one limit
	recallPause  = 500 * time.Millisecond // after a recall, until buckets are filled ahead again
	exhaustedFor = 100 * time.Millisecond // how long an Exhausted answer holds
	idleParts    = 8                      // an unused bucket holds 1/idleParts of its even share
	epsilon      = 1e-6                   // forgives what adding up fractions of a unit loses
)

// UsageReport is an activator's report of its bucket for one limit. Returned and Received
// count from the beginning of a connection; the rest is the present state.
type UsageReport struct {
	Team     string
	Kind     Kind
	Held     int64  // unspent units, less than nothing in debt; of places all that are lent, used or not
	Used     int64  // of places: those in use
	Want     int64  // units it could use beyond Held
	Waiting  int64  // of those, what requests wait for
	Returned int64  // units given back
	Received int64  // of Allotment.Granted, what it has taken in
	Recalled uint64 // the newest recall that was carried out

	// In the first report of a connection: the last allotment, by its number.
	Seq  uint64
	Left float64
}

// Allotment is the coordinator's message about one limit to one activator; the newest counts.
type Allotment struct {
	Team      string
	Kind      Kind
	Granted   int64         // units, since the beginning of the connection
	Idle      int64         // so many it may hold without needing them
	Recall    uint64        // grown: what is not needed now is to be given back
	Exhausted time.Duration // not 0: no unit for waiting requests before this time
	Seq       uint64        // grows with each grant of all banks there ever were
	Left      float64       // what the coordinator has left
}

// UsageReports are an activator's reports. Share is its share of each limit without a
// connection, as it knows it.
type UsageReports struct {
	Share float64
	List  []UsageReport
}

// Allotments are the coordinator's messages to one activator. Share is the activator's share
// of each limit without a connection.
type Allotments struct {
	Share float64
	List  []Allotment
}

func refilled(size float64, k Kind, d time.Duration) float64 {
	if d <= 0 || k.Span() == 0 {
		return 0
	}
	return size * float64(d) / float64(k.Span())
}

// timeToRefill is how long the missing units take to refill.
func timeToRefill(missing, size float64, k Kind) time.Duration {
	if missing <= 0 {
		return 0
	}
	if k.Span() == 0 || size <= 0 {
		return time.Second
	}
	return time.Duration(math.Ceil(missing / size * float64(k.Span())))
}
