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
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
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
	teams []*team
	named map[string]*team

	catalog catalog

	limits  ratelimit.Limits
	limited bool // some team has limits

	loop  *loop // the current one
	epoch int64
	ids   int

	traffic       traffic
	demandChanged []*function // functions whose demand changed since the last turn

	tally  tally
	series series

	Faults Faults
	// OnRequestEnd, if not nil, receives the end of every request.
	OnRequestEnd func(RequestEnd)
}

// loop is one instance of the orchestrator.
type loop struct {
	st           *State
	orchestrator *orchestrator.Orchestrator
	at           time.Duration // time of its next turn; 0 if none is scheduled
	gen          uint32
	dead         bool // its commands no longer arrive
}

const tick = time.Second

// Open creates a run at its start.
func Open(c Config) (*State, error) {
	if c.Fleet == nil || c.Fleet.GPUs() == 0 {
		return nil, errors.New("simulate: the fleet has no GPUs")
	}
	c = c.withDefaults()
	st := &State{
		c: c, byID: map[string]*node{}, reps: map[string]*replica{}, fns: map[functions.Name]*function{},
		named: map[string]*team{},
		tally: tally{Result: Result{Ends: Ends{Refused: map[string]int64{}}}}, Faults: Faults{breaks: map[functions.Name]string{}},
	}
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
	st.At(0, st.sendHeartbeats)
	if st.series.every = c.Sample; c.Sample > 0 {
		st.At(c.Sample, st.sample)
	}
	st.begin()
	return st, nil
}

func (s *State) deploy(models []*functions.Model) {
	s.catalog = catalog{teams: s.c.Teams, unfit: map[functions.Name]bool{}}
	for _, m := range models {
		if reason := s.c.unplaceableReason(m); reason != "" {
			s.catalog.impossible = append(s.catalog.impossible, Impossible{m.FullName().String(), reason})
			s.catalog.unfit[m.FullName()] = true
			continue
		}
		s.catalog.models = append(s.catalog.models, m)
		s.functionOf(m.FullName()).set(m)
	}
	slices.SortFunc(s.catalog.impossible, func(a, b Impossible) int { return strings.Compare(a.Name, b.Name) })
}

// begin starts a new instance of the orchestrator.
func (s *State) begin() {
	s.epoch++
	l := &loop{st: s}
	s.loop = l
	progress := time.Duration(-1) // snapshots of running starts are not republished
	if s.clientsTimeOut() {
		progress = 0
	}
	l.orchestrator = orchestrator.New(orchestrator.Options{
		Epoch: s.epoch, Catalog: &s.catalog, Policy: s.c.Policy,
		Progress: progress, Foresight: s.newForesight(),
		Event: func(e functions.Event) {
			if !l.superseded() { // a replaced instance reports events that do not happen
				s.event(&e)
			}
		},
		Now: s.wall, NewID: s.newID, RunCommand: l.do, OnUpdate: func() { l.want(s.clock.now + s.c.Gather) },
	})
	l.orchestrator.Attach(l)
	for _, f := range s.list {
		if d := f.demand(); d.Active+d.Queued > 0 {
			l.orchestrator.Demand(d)
		}
	}
	l.orchestrator.Changed()
	l.want(s.clock.now)
}

// clientsTimeOut reports whether the progress of a start matters: clients with a timeout are
// refused at once if the start will take longer.
func (s *State) clientsTimeOut() bool { return s.c.ClientTimeouts.Wait > 0 }

// newForesight returns the forecast of one orchestrator instance; nil without forecasts.
func (s *State) newForesight() *foresight.Options {
	c := &s.c
	if c.Foresight == nil && c.Next == nil {
		return nil
	}
	f := &foresight.Options{}
	if c.Foresight != nil {
		*f = *c.Foresight
	}
	f.History = forecast.New(forecast.Options{})
	if c.Next != nil {
		f.Next = func(name functions.Name, now time.Time) time.Time {
			at := now.Sub(s.instant(0))
			if next := c.Next(name, at); next > 0 {
				return now.Add(next - at)
			}
			return time.Time{}
		}
	}
	return f
}

// catalog is the orchestrator's source of functions and teams.
type catalog struct {
	models     []*functions.Model
	teams      []*functions.Team
	unfit      map[functions.Name]bool // models that no node can hold
	impossible []Impossible            // why
}

func (c *catalog) Models() []*functions.Model { return c.models }
func (c *catalog) Teams() []*functions.Team   { return c.teams }

// wall returns the virtual wall-clock time.
func (s *State) wall() time.Time { return s.instant(s.clock.now) }

func (s *State) instant(d time.Duration) time.Time { return s.c.Start.Add(d + s.skew) }

func (s *State) newID(prefix string) string {
	if len(prefix) > 50 {
		prefix = strings.TrimRight(prefix[:50], "-")
	}
	s.ids++
	return prefix + "-" + strconv.Itoa(s.ids)
}

func (s *State) engine(e functions.Engine) *fleet.Engine {
	if x, ok := s.c.Engines[e]; ok {
		return &x
	}
	return &s.c.Fleet.Engine
}

func (s *State) teamOf(name string) *team {
	t := s.named[name]
	if t == nil {
		t = &team{Team: Team{Name: name}}
		s.named[name] = t
		s.teams = append(s.teams, t)
	}
	return t
}

func (s *State) functionOf(name functions.Name) *function {
	f := s.fns[name]
	if f == nil {
		h := fnv.New64a()
		h.Write([]byte(name.String()))
		f = &function{st: s, name: name, team: s.teamOf(name.Team), drawSeed: h.Sum64(), queue: &admission.Queue{}}
		f.queue.Demand = f
		s.fns[name] = f
		s.list = append(s.list, f)
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

func (l *loop) generation() uint32 { return l.gen }

func (l *loop) act(uint8) {
	st := l.st
	if l.dead {
		return
	}
	if until := st.Faults.stalled; until > st.clock.now {
		l.at = 0
		l.want(until)
		return
	}
	l.at = 0
	st.tally.Turns++
	if !l.superseded() {
		st.reportDemand()
	}
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
	if st.Faults.CommandDelay != nil {
		d += st.Faults.CommandDelay()
	}
	st.After(d, func() {
		if !l.dead {
			f(context.Background())
		}
	})
}

// sendHeartbeats sends the heartbeats of all nodes, again and again.
func (s *State) sendHeartbeats() {
	for _, n := range s.nodes {
		n.beat()
	}
	s.After(beatEvery, s.sendHeartbeats)
}

func (s *State) deliverHeartbeat(n *node) {
	if s.Faults.HeartbeatDelays == nil {
		s.loop.orchestrator.Heartbeat(n.doc, n)
		return
	}
	for _, d := range s.Faults.HeartbeatDelays(n.id) {
		if d <= 0 {
			s.loop.orchestrator.Heartbeat(n.doc, n)
		} else {
			doc := n.doc
			s.After(d, func() { s.loop.orchestrator.Heartbeat(doc, n) })
		}
	}
}

func (s *State) event(e *functions.Event) {
	if s.c.Event != nil {
		s.c.Event(*e)
	}
	f := s.parsed(e.Function)
	if f == nil {
		return
	}
	switch e.Kind {
	case "stop", "sleep":
		if e.For == "" {
			return // no other function causes it
		}
		s.tally.Evictions++
		f.evicted, f.last = true, s.clock.now
		if by := s.parsed(e.For); by != nil && by.team != f.team {
			by.team.Inflicted++
			f.team.Suffered++
		}
	case "start", "wake_up":
		if f.evicted && s.clock.now-f.last < ThrashWithin {
			s.tally.Thrash++
		}
		f.evicted = false
	}
}

func (s *State) parsed(name string) *function {
	team, short, ok := strings.Cut(name, "/")
	if !ok {
		return nil
	}
	return s.fns[functions.Name{Team: team, Name: short}]
}

// step fires the next event up to a time; false if there is none.
func (s *State) step(until time.Duration) bool {
	if len(s.clock.heap) == 0 || s.clock.heap[0].at > until {
		return false
	}
	e := s.clock.pop()
	s.clock.now = e.at
	if e.gen != 0 && e.actor.generation() != e.gen {
		return true
	}
	s.tally.Events++
	e.actor.act(e.kind)
	s.traffic.handleDecided()
	return true
}

// Pass runs the simulation for a duration.
func (s *State) Pass(ctx context.Context, d time.Duration) error {
	return s.until(ctx, s.clock.now+d)
}

func (s *State) until(ctx context.Context, at time.Duration) error {
	for s.step(at) {
		if err := s.stepped(ctx, s.tally.Events); err != nil {
			return err
		}
	}
	s.clock.now = max(s.clock.now, at)
	return nil
}

// stepped follows each of n events or arrivals.
func (s *State) stepped(ctx context.Context, n int64) error {
	if s.c.Step != nil {
		if err := s.c.Step(s); err != nil {
			return err
		}
	}
	if n&4095 != 0 {
		return nil
	}
	s.reportProgress()
	return ctx.Err()
}

func (s *State) reportProgress() {
	if s.c.Progress != nil {
		t := &s.tally
		s.c.Progress(Progress{At: s.clock.now, Requests: t.Requests, Cold: t.Cold})
	}
}

// Ask adds a request now, and returns its id. OnRequestEnd may be called before it returns.
func (s *State) Ask(r Request) (id uint64) {
	r.At = s.clock.now
	s.arrive(&r)
	return uint64(s.tally.Requests)
}

// Prewarm asks the orchestrator to start a function that has no request yet and to keep it
// for a while, as the data path does.
func (s *State) Prewarm(name functions.Name, keep time.Duration, by string) error {
	return s.loop.orchestrator.PrewarmBriefly(name, s.wall().Add(keep), by)
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
	n := int64(0)
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
		n++
		if err := st.stepped(ctx, n); err != nil {
			return Result{}, err
		}
	}
	last := st.clock.now
	if err := st.until(ctx, max(c.Until, last)); err != nil {
		return Result{}, err
	}
	// Every wait is bounded; the extra hour covers long generations.
	for len(st.traffic.active) > 0 && st.clock.now < max(c.Until, last)+lastHour {
		if err := st.until(ctx, st.clock.now+tick); err != nil {
			return Result{}, err
		}
	}
	st.reportProgress()
	return st.Result(), nil
}

const lastHour = time.Hour
