package placement

import (
	"cmp"
	"math"
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// What an Explanation is about.
const (
	KindPlace = "place" // where it was placed, or why nowhere
	KindEvict = "evict" // which replicas were evicted for it
	KindCold  = "cold"  // why it lost a replica, and has to start again
	KindScale = "scale" // why it wants more replicas than it has
)

// Explain returns the last decision about a function, or with kinds the last of
// one of these, and the time of its plan. It is false where none is remembered.
// State, Now and Decided are the caller's to fill in.
func (c *Planner) Explain(name functions.Name, kinds ...string) (x functions.Explanation, at Instant, ok bool) {
	var last *decisionRecord
	for _, kind := range [...]string{KindPlace, KindEvict, KindCold, KindScale} {
		if len(kinds) > 0 && !slices.Contains(kinds, kind) {
			continue
		}
		if c.log == nil {
			break
		}
		if p := c.log.pages[decisionKey{name, kind}]; p != nil && (last == nil || p.written > last.written) {
			last = p
		}
	}
	if last == nil {
		return x, 0, false
	}
	x = functions.Explanation{Kind: last.kind, Function: name.String(), Chosen: last.chosen, Reason: last.reason, For: last.forFunction, Others: max(0, last.seen-last.n)}
	if v, ok := c.blocked[name]; ok && x.Kind == KindPlace && x.Chosen == "" {
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

// keepDecisions is how many decisions are remembered: 2,000 pages of about 1.3 KiB.
const keepDecisions = 2000

// decisionLog keeps the last decisions. Records are reused and hold the world's own
// strings; text is made when Explain asks. A nil log keeps nothing.
type decisionLog struct {
	pages   map[decisionKey]*decisionRecord
	order   []*decisionRecord // by when they were begun first, as a ring
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

// begin opens the page of a decision, empty; nil where nothing is kept.
func (b *decisionLog) begin(now Instant, name functions.Name, kind, reason string) *decisionRecord {
	if b == nil {
		return nil
	}
	t := decisionKey{name, kind}
	p := b.pages[t]
	if p == nil {
		if len(b.order) < keepDecisions {
			p = &decisionRecord{}
			b.order = append(b.order, p)
		} else {
			p = b.order[b.next]
			b.next = (b.next + 1) % keepDecisions
			delete(b.pages, p.decisionKey)
		}
		p.decisionKey = t
		b.pages[t] = p
	}
	b.written++
	p.at, p.written, p.chosen, p.forFunction, p.reason, p.n, p.seen = now, b.written, "", "", reason, 0, 0
	return p
}

// newDecisionLog is an empty one.
func newDecisionLog() *decisionLog { return &decisionLog{pages: map[decisionKey]*decisionRecord{}} }

// add notes a candidate, if it is among the best.
func (p *decisionRecord) add(l candidateRow) {
	if p == nil {
		return
	}
	p.seen++
	if p.n < len(p.lines) {
		p.lines[p.n] = l
		p.n++
		return
	}
	worst := 0
	for i := range p.lines {
		if p.lines[i].score > p.lines[worst].score {
			worst = i
		}
	}
	if l.score < p.lines[worst].score {
		p.lines[worst] = l
	}
}

var (
	noPartNames     = [4]string{}
	evictPartNames  = [4]string{"loss", "gib", "idle_seconds", "back_seconds"}
	placePartNames  = [4]string{"ready", "packing", "topology", "store"}
	demandPartNames = [4]string{"wanted", "lacks", "queued", "active"}
)

// rejectNode notes a node that cannot be taken.
func (p *decisionRecord) rejectNode(node, why string) {
	if p != nil {
		if p.n == len(p.lines) {
			p.seen++
			return
		}
		p.add(candidateRow{node: node, why: why, score: math.Inf(1), names: &noPartNames})
	}
}

// choose notes what was taken.
func (p *decisionRecord) choose(what string) {
	if p != nil {
		p.chosen = what
	}
}
