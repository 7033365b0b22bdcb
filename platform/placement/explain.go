package placement

import (
	"cmp"
	"math"
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// Kinds of explained decisions.
const (
	KindPlace = "place" // where a function was placed, or why nowhere
	KindEvict = "evict" // which replicas were evicted for a function
	KindCold  = "cold"  // why a function lost a replica
	KindScale = "scale" // why a function needs more replicas than it has
)

// Explain returns the last decision about a function, limited to kinds if given, and
// the time of its plan. ok is false if none is recorded. The caller fills in State,
// Now and Decided.
func (p *Planner) Explain(name functions.Name, kinds ...string) (x functions.Explanation, at Instant, ok bool) {
	var last *decisionRecord
	for _, kind := range [...]string{KindPlace, KindEvict, KindCold, KindScale} {
		if len(kinds) > 0 && !slices.Contains(kinds, kind) {
			continue
		}
		if p.log == nil {
			break
		}
		if record := p.log.pages[decisionKey{name, kind}]; record != nil && (last == nil || record.written > last.written) {
			last = record
		}
	}
	if last == nil {
		return x, 0, false
	}
	x = functions.Explanation{Kind: last.kind, Function: name.String(), Chosen: last.chosen, Reason: last.reason, For: last.forFunction, Others: max(0, last.seen-last.n)}
	if v, ok := p.blocked[name]; ok && x.Kind == KindPlace && x.Chosen == "" {
		x.Reason = v.Message
	}
	lines := slices.Clone(last.lines[:last.n])
	slices.SortStableFunc(lines, func(a, b candidateRow) int { return cmp.Compare(a.score, b.score) })
	for i := range lines {
		l := &lines[i]
		y := functions.Candidate{Node: l.node, Replica: l.replica, Why: l.why}
		if l.function != (functions.Name{}) {
			y.Function = l.function.String()
		}
		if x.Kind == KindPlace && !math.IsInf(l.score, 1) {
			y.Tier, y.Why = functions.Tier(l.why), ""
		}
		if !math.IsInf(l.score, 1) {
			y.Score = &l.score
			for i, n := range l.names {
				if n != "" {
					y.Parts = append(y.Parts, functions.ScorePart{Name: n, Value: l.parts[i]})
				}
			}
		}
		x.Candidates = append(x.Candidates, y)
	}
	return x, last.at, true
}

// keepDecisions is the number of decisions kept: 2,000 records of about 1.3 KiB.
const keepDecisions = 2000

// decisionLog keeps the last decisions. Records are reused and share the world's
// strings; Explain makes the text. A nil log keeps nothing.
type decisionLog struct {
	pages   map[decisionKey]*decisionRecord
	order   []*decisionRecord // a ring, in the order of allocation
	next    int
	written uint64
}

type decisionKey struct {
	name functions.Name
	kind string
}

type decisionRecord struct {
	decisionKey
	at                  Instant
	written             uint64
	chosen, forFunction string
	reason              string
	lines               [8]candidateRow
	n, seen             int
}

type candidateRow struct {
	node, replica, why string
	function           functions.Name
	score              float64
	names              *[4]string
	parts              [4]float64
}

// begin returns the emptied record of a decision; nil if l is nil.
func (l *decisionLog) begin(now Instant, name functions.Name, kind, reason string) *decisionRecord {
	if l == nil {
		return nil
	}
	t := decisionKey{name, kind}
	p := l.pages[t]
	if p == nil {
		if len(l.order) < keepDecisions {
			p = &decisionRecord{}
			l.order = append(l.order, p)
		} else {
			p = l.order[l.next]
			l.next = (l.next + 1) % keepDecisions
			delete(l.pages, p.decisionKey)
		}
		p.decisionKey = t
		l.pages[t] = p
	}
	l.written++
	p.at, p.written, p.chosen, p.forFunction, p.reason, p.n, p.seen = now, l.written, "", "", reason, 0, 0
	return p
}

// newDecisionLog returns an empty log.
func newDecisionLog() *decisionLog { return &decisionLog{pages: map[decisionKey]*decisionRecord{}} }

// add records a candidate if it is among the best.
func (r *decisionRecord) add(l candidateRow) {
	if r == nil {
		return
	}
	r.seen++
	if r.n < len(r.lines) {
		r.lines[r.n] = l
		r.n++
		return
	}
	worst := 0
	for i := range r.lines {
		if r.lines[i].score > r.lines[worst].score {
			worst = i
		}
	}
	if l.score < r.lines[worst].score {
		r.lines[worst] = l
	}
}

var (
	noPartNames     = [4]string{}
	evictPartNames  = [4]string{"loss", "gib", "idle_seconds", "back_seconds"}
	placePartNames  = [4]string{"ready", "packing", "topology", "store"}
	demandPartNames = [4]string{"wanted", "lacks", "queued", "active"}
)

// rejectNode records a node that was rejected, and why.
func (r *decisionRecord) rejectNode(node, why string) {
	if r != nil {
		if r.n == len(r.lines) {
			r.seen++
			return
		}
		r.add(candidateRow{node: node, why: why, score: math.Inf(1), names: &noPartNames})
	}
}

// choose records the chosen node or replica.
func (r *decisionRecord) choose(what string) {
	if r != nil {
		r.chosen = what
	}
}
