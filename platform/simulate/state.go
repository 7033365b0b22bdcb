package simulate

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/orchestrator"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
)

// State is a run. One goroutine owns it.
type State struct {
	c     Config
	clock clock
	skew  time.Duration // offset of the orchestrator's wall clock
	nodes []*node       // by id
	byID  map[string]*node
	reps  map[string]*replica // those that nodes have
	fns   map[functions.Name]*function
	list  []*function
	unfit map[functions.Name]bool
	teams []*team
	named map[string]*team
	gpus  int

	models  []*functions.Model
	sources pipe

	limits  ratelimit.Limits
	limited bool // some team has limits

	*loop
	epoch int64
	ids   int

	pool            []*request
	decided         []*request // admitted or rejected, not handled yet
	handlingDecided bool
	stranded        []*request  // at a node that does not answer
	demandChanged   []*function // functions whose demand changed since the last turn
	spare           []*function
	busy            []*function // functions that may have requests
	active          []*request  // active requests

	tally           tally
	series          series
	impossible      []Impossible
	refusedForSpace int64 // commands refused for lack of room: the orchestrator believed they would fit
	faults
}

// loop is one instance of the orchestrator.
type loop struct {
	st           *State
	orchestrator *orchestrator.Orchestrator
	at           time.Duration // time of its next turn; 0 if none is scheduled
	gen          uint32
	dead         bool // its commands no longer arrive
}

const beats uint8 = 0 // the event of a State: all nodes send heartbeats

const tick = time.Second

// Open creates a run at its start.
func Open(c Config) (*State, error) {
	if c.Fleet == nil || c.Fleet.GPUs() == 0 {
		return nil, errors.New("simulate: the fleet has no GPUs")
	}
	c = c.withDefaults()
	st := &State{
		c: c, byID: map[string]*node{}, reps: map[string]*replica{}, fns: map[functions.Name]*function{},
		unfit: map[functions.Name]bool{}, named: map[string]*team{}, gpus: c.Fleet.GPUs(),
		tally: tally{refused: map[string]int64{}}, sources: pipe{rate: float64(c.Sources)},
	}
	st.faults.init()
	for id, kind := range c.Fleet.Hosts {
		n := newNode(st, id, kind)
		st.nodes = append(st.nodes, n)
		st.byID[id] = n
	}
	slices.SortFunc(st.nodes, func(a, b *node) int { return strings.Compare(a.id, b.id) })
	var teams []functions.Team
	for _, t := range c.Teams {
		st.teamOf(t.Metadata.Name)
		teams = append(teams, *t)
		st.limited = st.limited || t.Spec.Limits != (functions.Limits{})
	}
	st.limits.SetTeams(teams)
	st.deploy(c.Functions)
	st.clock.set(0, st, beats, 0)
	if st.series.every = c.Sample; c.Sample > 0 {
		st.clock.set(c.Sample, (*sampler)(st), sampling, 0)
	}
	st.begin()
	return st, nil
}

// deploy replaces the catalogue.
func (st *State) deploy(models []*functions.Model) {
	st.models, st.impossible = nil, nil
	clear(st.unfit)
	for _, m := range models {
		if reason := st.c.unplaceableReason(m); reason != "" {
			st.impossible = append(st.impossible, Impossible{m.FullName().String(), reason})
			st.unfit[m.FullName()] = true
			continue
		}
		st.models = append(st.models, m)
		st.functionOf(m.FullName()).set(m)
	}
	slices.SortFunc(st.impossible, func(a, b Impossible) int { return strings.Compare(a.Name, b.Name) })
}

// begin starts a new instance of the orchestrator.
func (st *State) begin() {
	st.epoch++
	l := &loop{st: st}
	st.loop = l
	l.orchestrator = orchestrator.New(orchestrator.Options{
		Epoch: st.epoch, Catalog: (*catalog)(st), Policy: st.c.Policy,
		Progress: st.progress(), Foresight: st.newForesight(),
		Hooks: orchestrator.Hooks{Event: func(e functions.Event) {
			if st.loop == l { // a replaced instance reports events that do not happen
				st.event(&e)
			}
		}},
		Now: st.wall, NewID: st.newID, Do: l.do, Ring: func() { l.want(st.clock.now + st.c.Gather) },
	})
	l.orchestrator.Attach(&path{st, l})
	l.orchestrator.Changed()
	l.want(st.clock.now)
}

// watched reports whether the progress of a start matters: clients with a timeout are
// refused at once if the start will take longer.
func (st *State) watched() bool { return st.c.ClientTimeouts.Wait > 0 }

// newForesight returns the forecast of one orchestrator instance; nil without forecasts.
func (st *State) newForesight() *orchestrator.Foresight {
	c := &st.c
	if !c.Learn && !c.Ahead && c.Next == nil {
		return nil
	}
	f := &orchestrator.Foresight{History: forecast.New(forecast.Options{}), StartAhead: c.Ahead, Budget: c.AheadBudget, Teams: c.AheadTeams}
	if c.Next != nil {
		f.Next = func(name functions.Name, now time.Time) time.Time {
			at := now.Sub(st.instant(0))
			if next := c.Next(name, at); next > 0 {
				return now.Add(next - at)
			}
			return time.Time{}
		}
	}
	return f
}

// progress is the interval at which snapshots of running starts are republished.
func (st *State) progress() time.Duration {
	if st.watched() {
		return 0
	}
	return -1
}

// catalog is the orchestrator's source of functions and teams.
type catalog State

func (c *catalog) Models() []*functions.Model { return c.models }
func (c *catalog) Teams() []*functions.Team   { return c.c.Teams }

// wall returns the virtual wall-clock time.
func (st *State) wall() time.Time { return st.instant(st.clock.now) }

func (st *State) instant(d time.Duration) time.Time { return st.c.Start.Add(d + st.skew) }

func (st *State) newID(prefix string) string {
	if len(prefix) > 50 {
		prefix = strings.TrimRight(prefix[:50], "-")
	}
	st.ids++
	return prefix + "-" + strconv.Itoa(st.ids)
}

func (st *State) engine(e functions.Engine) *fleet.Engine {
	if x, ok := st.c.Engines[e]; ok {
		return &x
	}
	return &st.c.Fleet.Engine
}

func (st *State) teamOf(name string) *team {
	t := st.named[name]
	if t == nil {
		t = &team{name: name}
		st.named[name] = t
		st.teams = append(st.teams, t)
	}
	return t
}

func (st *State) functionOf(name functions.Name) *function {
	f := st.fns[name]
	if f == nil {
		h := fnv.New64a()
		h.Write([]byte(name.String()))
		f = &function{st: st, name: name, team: st.teamOf(name.Team), drawSeed: h.Sum64(), queue: &admission.Queue{}}
		f.queue.Demand = f
		st.fns[name] = f
		st.list = append(st.list, f)
	}
	return f
}

func (f *function) set(m *functions.Model) {
	f.model = m
	f.size = f.st.c.size(m)
	f.source = ""
	if m.Spec.Source != "" {
		f.source = m.Spec.Source
		if _, l, err := loader.Locate(m.Spec.Source, m.Dir); err == nil {
			f.source = l
		}
	}
}

// want schedules a turn at a time or earlier.
func (l *loop) want(at time.Duration) {
	if l.dead || l.at != 0 && l.at <= at {
		return
	}
	l.at = max(at, 1)
	l.gen++
	l.st.clock.set(l.at, l, 0, l.gen)
}

func (l *loop) age() uint32 { return l.gen }

// act runs a turn.
func (l *loop) act(uint8) {
	st := l.st
	if l.dead {
		return
	}
	if until := st.stalled; until > st.clock.now {
		l.at = 0
		l.want(until)
		return
	}
	l.at = 0
	st.tally.turns++
	next := l.orchestrator.Turn(context.Background())
	if next <= 0 || next > tick {
		next = tick
	}
	l.want(st.clock.now + next)
}

// do executes a command after the latency.
func (l *loop) do(_ time.Duration, f func(context.Context)) {
	st := l.st
	d := st.c.Latency
	if st.CommandDelay != nil {
		d += st.CommandDelay()
	}
	st.clock.set(st.clock.now+d, &call{l, f}, 0, 0)
}

type call struct {
	l *loop
	f func(context.Context)
}

func (c *call) age() uint32 { return 0 }

func (c *call) act(uint8) {
	if !c.l.dead {
		c.f(context.Background())
	}
}

func (st *State) age() uint32 { return 0 }

// act sends the heartbeats of all nodes.
func (st *State) act(uint8) {
	for _, n := range st.nodes {
		n.beat()
	}
	st.clock.set(st.clock.now+beatEvery, st, beats, 0)
}

// deliverHeartbeat delivers a heartbeat to the orchestrator.
func (st *State) deliverHeartbeat(n *node) {
	if st.HeartbeatDelays == nil {
		st.orchestrator.Heartbeat(n.doc, n)
		return
	}
	for _, d := range st.HeartbeatDelays(n.id) {
		if d <= 0 {
			st.orchestrator.Heartbeat(n.doc, n)
		} else {
			st.clock.set(st.clock.now+d, &delayedHeartbeat{n, n.doc}, 0, 0)
		}
	}
}

// delayedHeartbeat is a delayed heartbeat.
type delayedHeartbeat struct {
	n   *node
	doc functions.Heartbeat
}

func (l *delayedHeartbeat) age() uint32 { return 0 }
func (l *delayedHeartbeat) act(uint8)   { l.n.st.orchestrator.Heartbeat(l.doc, l.n) }

// event counts the orchestrator's events.
func (st *State) event(e *functions.Event) {
	if st.c.Event != nil {
		st.c.Event(*e)
	}
	switch e.Kind {
	case "stop", "sleep":
		f := st.parsed(e.Function)
		if e.For == "" || f == nil {
			return // no other function causes it
		}
		st.tally.evictions++
		f.evicted, f.last = true, st.clock.now
		if by := st.parsed(e.For); by != nil && by.team != f.team {
			by.team.evictionsInflicted++
			f.team.evictionsSuffered++
		}
	case "start", "rise":
		f := st.parsed(e.Function)
		if f != nil && f.evicted {
			if st.clock.now-f.last < ThrashWithin {
				st.tally.thrash++
			}
			f.evicted = false
		}
	}
}

func (st *State) parsed(name string) *function {
	team, short, ok := strings.Cut(name, "/")
	if !ok {
		return nil
	}
	return st.fns[functions.Name{Team: team, Name: short}]
}

// one fires the next event up to a time; false if there is none.
func (st *State) one(until time.Duration) bool {
	at, ok := st.clock.next()
	if !ok || at > until {
		return false
	}
	e := st.clock.pop()
	st.clock.now = at
	if e.gen != 0 && e.actor.age() != e.gen {
		return true
	}
	st.tally.events++
	e.actor.act(e.wha)
	st.handleDecided()
	return true
}

// Pass runs the simulation for a duration.
func (st *State) Pass(ctx context.Context, d time.Duration) error {
	return st.until(ctx, st.clock.now+d)
}

func (st *State) until(ctx context.Context, at time.Duration) error {
	for st.one(at) {
		if st.c.Step != nil {
			if err := st.c.Step(st); err != nil {
				return err
			}
		}
		if st.tally.events&4095 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			st.recordUse()
		}
	}
	st.clock.now = max(st.clock.now, at)
	return nil
}

func (st *State) recordUse() {
	if st.c.Progress != nil {
		t := &st.tally
		st.c.Progress(Progress{At: st.clock.now, Requests: t.requests, Cold: t.cold})
	}
}

// Ask adds a request now, and returns its id. OnRequestEnd may be called before it returns.
func (st *State) Ask(r Request) (id uint64) {
	r.At = st.clock.now
	st.arrive(&r)
	return uint64(st.tally.requests)
}

// Prewarm asks the orchestrator to start a function that has no request yet and to keep it
// for a while, as the data path does.
func (st *State) Prewarm(name functions.Name, keep time.Duration, by string) error {
	return st.orchestrator.PrewarmBriefly(name, st.wall().Add(keep), by)
}

// Run simulates a trace until its last request has ended.
func Run(ctx context.Context, c Config) (Result, error) {
	if c.Requests == nil {
		return Result{}, errors.New("simulate: there is no trace")
	}
	st, err := Open(c)
	if err != nil {
		return Result{}, err
	}
	if c.Begin != nil {
		c.Begin(st)
	}
	n := 0
	for r, err := range c.Requests {
		if err != nil {
			return Result{}, err
		}
		if r.At < st.clock.now {
			return Result{}, fmt.Errorf("simulate: request %d of the trace comes at %v, after one at %v", n+1, r.At, st.clock.now)
		}
		if err := st.until(ctx, r.At); err != nil {
			return Result{}, err
		}
		st.arrive(&r)
		if st.c.Step != nil {
			if err := st.c.Step(st); err != nil {
				return Result{}, err
			}
		}
		if n++; n&4095 == 0 {
			if err := ctx.Err(); err != nil {
				return Result{}, err
			}
			st.recordUse()
		}
	}
	last := st.clock.now
	if err := st.until(ctx, max(c.Until, last)); err != nil {
		return Result{}, err
	}
	// Every wait is bounded; the extra hour covers long generations.
	for len(st.active) > 0 && st.clock.now < max(c.Until, last)+lastHour {
		if err := st.until(ctx, st.clock.now+tick); err != nil {
			return Result{}, err
		}
	}
	st.recordUse()
	return st.Result(), nil
}

const lastHour = time.Hour

// Result returns the result of the run so far.
func (st *State) Result() Result { return st.result() }
