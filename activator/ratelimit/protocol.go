package ratelimit

import (
	"math"
	"time"
)

// Kind is what a limit counts.
type Kind uint8

// The kinds of limits.
const (
	Requests   Kind = iota // that begin, a minute
	Tokens                 // a minute, told after the fact: a purse may be in debt
	ColdStarts             // an hour
	Concurrent             // requests at once
	Held                   // requests that wait at once
	Kinds      = iota
)

// Span is in how long a limit's units come anew; 0: they come back when a request
// ends.
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
	// AllotmentWait is how long a request waits for an answer of the bank.
	AllotmentWait = 250 * time.Millisecond
	// PartitionGrace is how long the places and the part of an activator that is away are
	// its own, where it is not known to be dead.
	PartitionGrace = time.Minute

	prefill      = 250 * time.Millisecond // what a purse spends in that time it has beforehand
	recallEvery  = 50 * time.Millisecond  // between two recalls of one limit
	calm         = 500 * time.Millisecond // after a recall, until purses are filled ahead again
	exhaustedFor = 100 * time.Millisecond // how long the answer that there is nothing is taken for granted
	idleParts    = 8                      // a purse nobody asks of has one of so many parts of its even part
	epsilon      = 1e-6                   // forgives what adding up fractions of a unit loses
)

// UsageReport is what an activator says of its purse for one limit. All but Back and Got is
// how things are now; the newest counts. Back and Got count from the beginning of a
// connection.
type UsageReport struct {
	Team     string
	Kind     Kind
	Held     int64  // unspent units, less than nothing in debt; of places all that are lent, used or not
	Used     int64  // of places: those in use
	Want     int64  // units it could use beyond Have
	Waiting  int64  // of those, what requests wait for
	Returned int64  // units given back
	Received int64  // of Grant.Given, what it has taken in
	Recalled uint64 // the newest recall that was carried out

	// In the first claim of a connection: what a bank told last, by its number.
	Seq  uint64
	Left float64
}

// Allotment is what the bank says of one limit to one activator; the newest counts.
type Allotment struct {
	Team      string
	Kind      Kind
	Given     int64         // units, since the beginning of the connection
	Idle      int64         // so many it may hold without needing them
	Recall    uint64        // grown: what is not needed now is to be given back
	Exhausted time.Duration // not 0: there is nothing for who waits; when there will be
	Seq       uint64        // grows with each grant of all banks there ever were
	Left      float64       // what the bank has left
}

// UsageReports is what an activator says. Part is how much of each limit it takes itself to
// have without a link.
type UsageReports struct {
	Share float64
	List  []UsageReport
}

// Allotments is what the bank says. Part is what the activator has of each limit once it
// is without a link.
type Allotments struct {
	Share float64
	List  []Allotment
}

// refilled is how much of size comes in d.
func refilled(size float64, k Kind, d time.Duration) float64 {
	if d <= 0 || k.Span() == 0 {
		return 0
	}
	return size * float64(d) / float64(k.Span())
}

// timeToRefill is how long it takes until so much has come.
func timeToRefill(missing, size float64, k Kind) time.Duration {
	if missing <= 0 {
		return 0
	}
	if k.Span() == 0 || size <= 0 {
		return time.Second
	}
	return time.Duration(math.Ceil(missing / size * float64(k.Span())))
}
