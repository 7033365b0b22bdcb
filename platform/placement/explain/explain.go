package explain

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

const (
	Place = "place" // where a function was placed, or why nowhere
	Evict = "evict" // which replicas were evicted for a function
	Cold  = "cold"  // why a function lost a replica
	Scale = "scale" // why a function needs more replicas than it has
)

var Kinds = []string{Place, Evict, Cold, Scale}

// keepDecisions is the number of decisions kept: 2,000 records of about 1.3 KiB.
const keepDecisions = 2000

// Log keeps the last decisions. Records are reused and share the caller's strings.
type Log struct {
	records map[key]*Record
	order   []*Record // a ring, in the order of allocation
	next    int
}

type key struct {
	name functions.Name
	kind string
}

// Record is one decision about a function.
type Record struct {
	key
	at                  time.Duration
	chosen, forFunction string
	reason              string
	rows                [8]Row
	n, seen             int
}

// Row is a candidate of a decision: a node, or a replica of another function.
type Row struct {
	Node, Replica, Why string
	Function           functions.Name
	Score              float64 // the lowest is the best; +Inf: it was rejected
	Names              *[4]string
	Parts              [4]float64 // of Score, by Names
}

func NewLog() *Log { return &Log{records: map[key]*Record{}} }

// Begin returns the emptied record of a decision made at a time; nil if l is nil.
func (l *Log) Begin(at time.Duration, name functions.Name, kind, reason string) *Record {
	if l == nil {
		return nil
	}
	k := key{name, kind}
	r := l.records[k]
	if r == nil {
		if len(l.order) < keepDecisions {
			r = &Record{}
			l.order = append(l.order, r)
		} else {
			r = l.order[l.next]
			l.next = (l.next + 1) % keepDecisions
			delete(l.records, r.key)
		}
		r.key = k
		l.records[k] = r
	}
	r.at, r.chosen, r.forFunction, r.reason, r.n, r.seen = at, "", "", reason, 0, 0
	return r
}

// Last returns the last decision of a kind about a function, and the time that it was made
// at; false if none is recorded.
func (l *Log) Last(name functions.Name, kind string) (x functions.Explanation, at time.Duration, ok bool) {
	if l == nil || l.records[key{name, kind}] == nil {
		return x, 0, false
	}
	last := l.records[key{name, kind}]
	x = functions.Explanation{Kind: last.kind, Function: name.String(), Chosen: last.chosen, Reason: last.reason, For: last.forFunction,
		Others: max(0, last.seen-last.n)}
	rows := slices.Clone(last.rows[:last.n])
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(a.Score, b.Score) })
	for i := range rows {
		r := &rows[i]
		y := functions.Candidate{Node: r.Node, Replica: r.Replica, Why: r.Why}
		if r.Function != (functions.Name{}) {
			y.Function = r.Function.String()
		}
		if x.Kind == Place && !math.IsInf(r.Score, 1) {
			y.Tier, y.Why = functions.Tier(r.Why), ""
		}
		if !math.IsInf(r.Score, 1) {
			y.Score = &r.Score
			for i, n := range r.Names {
				if n != "" {
					y.Parts = append(y.Parts, functions.ScorePart{Name: n, Value: r.Parts[i]})
				}
			}
		}
		x.Candidates = append(x.Candidates, y)
	}
	return x, last.at, true
}

// Add records a candidate if it is among the best.
func (r *Record) Add(row Row) {
	if r == nil {
		return
	}
	r.seen++
	if r.n < len(r.rows) {
		r.rows[r.n] = row
		r.n++
		return
	}
	worst := 0
	for i := range r.rows {
		if r.rows[i].Score > r.rows[worst].Score {
			worst = i
		}
	}
	if row.Score < r.rows[worst].Score {
		r.rows[worst] = row
	}
}

// RejectNode records a node that was rejected, and why.
func (r *Record) RejectNode(node, why string) {
	if r == nil {
		return
	}
	if r.n == len(r.rows) {
		r.seen++
		return
	}
	r.Add(Row{Node: node, Why: why, Score: math.Inf(1), Names: &noNames})
}

var noNames [4]string

// Choose records the chosen node or replica, and the function that gets the replica's room, if
// one does.
func (r *Record) Choose(what, forFunction string) {
	if r != nil {
		r.chosen, r.forFunction = what, forFunction
	}
}
