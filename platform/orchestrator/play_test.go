package orchestrator

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// play runs the loop deterministically on a clock of the test: no goroutine, no timer,
// no chance except the seed. It records every command.
type play struct {
	t       testing.TB
	at      time.Time
	began   time.Time
	heap    playSteps
	seq     int
	ids     int
	rnd     *rand.Rand
	s       *Orchestrator
	rang    bool
	next    int // number of the valid timer
	turns   int
	path    *playPath
	catalog *fakeCatalog
	agents  []*playAgent
	log     []string
	delay   func() time.Duration // of a command
	alone   func() bool
	setBack time.Duration // how far the server's clock was set back
}

type playStep struct {
	at  time.Time
	seq int
	do  func()
}

type playSteps []playStep

func (s playSteps) Len() int { return len(s) }
func (s playSteps) Less(i, j int) bool {
	if !s[i].at.Equal(s[j].at) {
		return s[i].at.Before(s[j].at)
	}
	return s[i].seq < s[j].seq
}
func (s playSteps) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *playSteps) Push(x any)   { *s = append(*s, x.(playStep)) }
func (s *playSteps) Pop() any {
	x := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return x
}

func newPlay(t testing.TB, seed uint64, ms ...*functions.Model) *play {
	began := time.Date(2026, 1, 2, 22, 4, 5, 0, time.UTC)
	p := &play{t: t, at: began, began: began, rnd: rand.New(rand.NewPCG(seed, 7)), catalog: &fakeCatalog{models: ms}}
	p.delay = func() time.Duration { return 2 * time.Millisecond }
	p.path = &playPath{p: p, by: map[functions.Name]*playQueue{}, slots: 8}
	p.boot(1)
	return p
}

// boot starts a new server process; updates no longer reach the earlier one.
func (p *play) boot(epoch int64) {
	var s *Orchestrator
	s = New(Options{
		Epoch: epoch, Path: p.path, Catalog: p.catalog, Machine: "m-here", Alone: p.alone, Now: func() time.Time { return p.at.Add(-p.setBack) },
		NewID: func(prefix string) string { p.ids++; return fmt.Sprint(prefix, "-", p.ids) },
		RunCommand: func(limit time.Duration, f func(context.Context)) {
			p.after(p.delay(), func() { f(context.Background()) })
		},
		OnUpdate: func() { p.rang = p.rang || p.s == s },
	})
	p.s = s
	for _, l := range p.path.list {
		l.changed = true
	}
	s.Changed()
	p.turn()
	var tock func()
	tock = func() {
		if p.s == s {
			p.rang = true
			p.after(tick, tock)
		}
	}
	p.after(tick, tock)
}

func (p *play) after(d time.Duration, f func()) {
	p.seq++
	heap.Push(&p.heap, playStep{p.at.Add(max(d, 0)), p.seq, f})
}

func (p *play) turn() {
	p.rang = false
	p.path.report()
	if next := p.s.Turn(context.Background()); next > 0 {
		p.next++
		n := p.next
		p.after(next, func() { p.rang = p.rang || p.next == n })
	}
	if p.turns++; p.turns%7 == 0 {
		p.consistent()
	}
}

// consistent checks that the planner has the current state of every function without
// pending updates.
func (p *play) consistent() {
	s := p.s
	for _, f := range s.loop.functionList {
		l := p.path.queueOf(f.Name)
		if _, reported := s.inbox.demand.Get(f.Name); reported || f.enqueued || l.changed || l.removed || s.loop.leadership.superseded || f.Gone {
			continue
		}
		is := &functionState{Function: f.Function, model: f.model, replicas: f.replicas, specHash: f.specHash, starts: f.starts}
		is.Replicas = nil
		is.inFlight = f.inFlight
		is.copyReplicas(&s.inbox)
		is.Active, is.Queued = 0, l.queued
		for _, n := range l.active {
			is.Active += n
		}
		is.Lease = max(f.wakeLease, f.userLease)
		if f.untilReady {
			is.Lease = forever
		}
		if f.Sleeps {
			is.canSleep(s.loop.bytesAtHand(f))
		}
		if len(is.Replicas) == 0 {
			is.Replicas = f.Replicas[:0]
		}
		if !reflect.DeepEqual(is.Function, f.Function) {
			p.t.Fatalf("%.3f: the planner does not know the state of %s:\n%+v\nbut\n%+v", p.at.Sub(p.began).Seconds(), f.Name, f.Function,
				is.Function)
		}
		if c := f.coldStart; c != nil && !c.Over != slices.Contains(s.loop.coldStarts.starting.List, f) {
			p.t.Fatalf("%s has a cold start under way: %v, in the books: %v", f.Name, !c.Over, slices.Contains(s.loop.coldStarts.starting.List, f))
		}
	}
	copies := map[string]int{}
	for _, n := range s.loop.nodeList {
		for source := range n.Cached {
			copies[source]++
		}
		for _, r := range s.loop.nodes[n.ID].replicas {
			if s.loop.replicas[r.ID] != r {
				p.t.Fatalf("%s is still on %s", r.ID, n.ID)
			}
		}
	}
	if !maps.Equal(copies, s.loop.copies) {
		p.t.Fatalf("copies of sources: %v, counted %v", copies, s.loop.copies)
	}
}

// pass advances the clock by d.
func (p *play) pass(d time.Duration) {
	until := p.at.Add(d)
	for p.rang || len(p.heap) > 0 && !p.heap[0].at.After(until) {
		if p.rang {
			p.turn()
			continue
		}
		x := heap.Pop(&p.heap).(playStep)
		p.at = x.at
		x.do()
	}
	p.at = until
}

func (p *play) note(format string, args ...any) {
	p.log = append(p.log, fmt.Sprintf("%9.3f ", p.at.Sub(p.began).Seconds())+fmt.Sprintf(format, args...))
}

func (p *play) states(name string) string {
	var out []string
	for _, r := range p.s.Replicas() {
		if r.Function == fname(name).String() {
			out = append(out, string(r.State)+"@"+r.Node)
		}
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

func (p *play) want(what, got, want string) {
	p.t.Helper()
	if got != want {
		p.t.Errorf("%s: got %s, want %s", what, got, want)
		for _, e := range p.s.Events(0) {
			p.t.Logf("  %9.3f %s %s %s %s %s %s", e.At.Sub(p.began).Seconds(), e.Kind, e.Function, e.Replica, e.Node, e.Reason, e.Message)
		}
		p.t.Log(strings.Join(p.log, "\n"))
		p.t.FailNow()
	}
}

func (p *play) events(kind string) (n int) {
	for _, e := range p.s.Events(0) {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// playPath is the activator of a play.
type playPath struct {
	p         *play
	by        map[functions.Name]*playQueue
	list      []*playQueue
	slots     int
	span      func() time.Duration // duration of a request; nil: until done
	cuts      []string
	onCut     func(agent string)
	onPublish func(f snapshot.Snapshot) // before a snapshot is applied; may be nil
}

type playQueue struct {
	name    functions.Name
	pic     snapshot.Snapshot
	queued  int
	since   time.Time
	last    time.Time
	failed  string
	ids     []string
	active  []int
	changed bool
	removed bool // its requests in flight no longer count, as in the real activator
}

func (p *playPath) queueOf(n functions.Name) *playQueue {
	l := p.by[n]
	if l == nil {
		l = &playQueue{name: n}
		p.by[n] = l
		p.list = append(p.list, l)
	}
	return l
}

func (p *playPath) Publish(fs ...snapshot.Snapshot) {
	for _, f := range fs {
		l := p.queueOf(f.Name)
		if p.onPublish != nil {
			p.onPublish(f)
		}
		l.pic = f
		if f.Failure != nil && p.p.at.Before(f.Failure.Until) && l.queued > 0 {
			l.failed, l.queued, l.changed = f.Failure.Reason, 0, true
		}
		p.release(l)
	}
	p.report()
}

func (p *playPath) release(l *playQueue) {
	for _, r := range l.pic.Replicas {
		i := slices.Index(l.ids, r.ID)
		if i < 0 {
			i = len(l.ids)
			l.ids, l.active = append(l.ids, r.ID), append(l.active, 0)
		}
		for l.queued > 0 && l.active[i] < p.slots {
			l.queued--
			l.active[i]++
			l.changed = true
			if p.span != nil {
				p.p.after(p.span(), func() { p.end(l, i) })
			}
		}
	}
}

func (p *playPath) end(l *playQueue, i int) {
	if l.active[i] > 0 {
		l.active[i]--
		l.last, l.changed = p.p.at, true
		p.release(l)
	}
}

func (p *playPath) done(name string) {
	l := p.queueOf(fname(name))
	for i := range l.active {
		for l.active[i] > 0 {
			p.end(l, i)
		}
	}
}

func (p *playPath) ask(name string, n int) string {
	l := p.queueOf(fname(name))
	if l.pic.Name.Name == "" {
		return "" // no such model
	}
	l.failed = ""
	if l.queued == 0 {
		l.since = p.p.at
	}
	l.queued, l.changed = l.queued+n, true
	p.release(l)
	switch {
	case len(l.pic.Replicas) == 0:
		return p.p.s.Wake(l.name)
	case l.queued > 0:
		p.p.s.Nudge(l.name)
	}
	return ""
}

func (p *playPath) leave(name string) {
	l := p.queueOf(fname(name))
	l.queued, l.changed = 0, true
	p.p.s.Nudge(l.name)
}

func (p *playPath) Remove(names ...functions.Name) {
	for _, n := range names {
		l := p.queueOf(n)
		l.pic, l.queued, l.changed, l.removed = snapshot.Snapshot{}, 0, true, true
	}
	p.report()
}

// report reports the demand that has changed.
func (p *playPath) report() {
	for _, l := range p.list {
		if !l.changed {
			continue
		}
		l.changed = false
		x := Demand{Name: l.name, Queued: l.queued, Oldest: l.since, LastEnd: l.last, InFlight: map[string]int{}}
		for i, a := range l.active {
			if x.Active += a; a > 0 {
				x.InFlight[l.ids[i]] = a
			}
		}
		p.p.s.Demand(x)
	}
}

func (p *playPath) AbortThrough(agent string) {
	p.cuts = append(p.cuts, agent)
	if p.onCut != nil {
		p.onCut(agent)
	}
}

// playAgent is an agent of a play.
type playAgent struct {
	p      *play
	id     string
	gpus   int
	epoch  int64
	reps   []*functions.ReplicaStatus
	since  []time.Time
	stage  func() time.Duration
	boot   func() time.Duration
	breaks func(model string) string // failure of its start; "" none
	refuse error
	mute   bool
	life   int
	seq    uint64
	bent   func(*functions.Heartbeat) // changes each heartbeat before it is sent
	sent   []functions.Heartbeat
	loads  []string
	ends   []string
}

func (p *play) agent(id string, gpus int) *playAgent {
	h := &playAgent{p: p, id: id, gpus: gpus}
	h.stage = func() time.Duration { return 2 * time.Second }
	h.boot = func() time.Duration { return 3 * time.Second }
	p.agents = append(p.agents, h)
	var beat func()
	beat = func() { h.push(); p.after(2*time.Second, beat) }
	beat()
	return h
}

func (a *playAgent) document() functions.Heartbeat {
	hb := functions.Heartbeat{AgentID: a.id, Epoch: a.epoch, Machine: "m-" + a.id, URL: "http://" + a.id + ":1"}
	hb.Memory.Total = 64 << 30
	for i := range a.gpus {
		hb.GPUs = append(hb.GPUs, functions.GPU{Index: i, MemoryTotal: 80 << 30, Health: "ok"})
	}
	for i, r := range a.reps {
		c := *r
		c.Phases = slices.Clone(r.Phases)
		c.Since = a.p.at.Sub(a.since[i]).Milliseconds()
		hb.Models = append(hb.Models, c)
	}
	a.seq++
	hb.Life, hb.Seq = fmt.Sprint("life", a.life), a.seq
	if a.bent != nil {
		a.bent(&hb)
	}
	return hb
}

// restart starts a new process of the agent, with the replicas that keep selects.
func (a *playAgent) restart(keep func(*functions.ReplicaStatus) bool) {
	a.life, a.seq = a.life+1, 0
	for i := len(a.reps) - 1; i >= 0; i-- {
		if !keep(a.reps[i]) {
			a.forget(a.reps[i].ID)
		}
	}
	a.push()
}

func (a *playAgent) push() {
	if a.mute {
		return
	}
	hb := a.document()
	a.sent = append(a.sent, hb)
	a.p.s.Heartbeat(hb, a)
}

func (a *playAgent) find(id string) int {
	return slices.IndexFunc(a.reps, func(r *functions.ReplicaStatus) bool { return r.ID == id })
}

func (a *playAgent) obeys(epoch int64) error {
	if a.refuse != nil {
		return a.refuse
	}
	if epoch < a.epoch {
		return functions.ErrStaleEpoch
	}
	a.epoch = epoch
	return nil
}

func (a *playAgent) Load(_ context.Context, req functions.LoadRequest) (functions.LoadReply, error) {
	a.p.note("%s load %s %s/%s %v", a.id, req.ID, req.Team, req.Model, req.GPUs)
	if err := a.obeys(req.Epoch); err != nil {
		return functions.LoadReply{}, err
	}
	if a.find(req.ID) >= 0 {
		return functions.LoadReply{ID: req.ID}, nil
	}
	a.loads = append(a.loads, req.Model)
	spec := req.Spec
	a.run(&functions.ReplicaStatus{ID: req.ID, Team: req.Team, Model: req.Model, Spec: &spec, GPUs: req.GPUs, TotalBytes: 1000},
		functions.Downloading)
	return functions.LoadReply{ID: req.ID}, nil
}

// run puts a replica on the site and moves it from a state to READY.
func (a *playAgent) run(r *functions.ReplicaStatus, from functions.State) {
	a.reps, a.since = append(a.reps, r), append(a.since, a.p.at)
	a.to(r, from)
}

func (a *playAgent) to(r *functions.ReplicaStatus, st functions.State) {
	i := a.find(r.ID)
	if i < 0 || a.reps[i] != r || r.State.Over() {
		return
	}
	r.State, a.since[i] = st, a.p.at
	switch st {
	case functions.Downloading:
		a.p.after(a.stage(), func() { a.to(r, functions.Loading) })
	case functions.Loading:
		r.Bytes = r.TotalBytes
		r.Phases = []functions.Span{{Phase: functions.PhaseStage, Duration: 2}, {Phase: functions.PhaseSpawn, Start: 2, Duration: 0.1}}
		a.p.after(a.boot(), func() {
			if a.breaks != nil {
				if why := a.breaks(r.Model); why != "" {
					r.Error = why
					a.to(r, functions.Failed)
					return
				}
			}
			a.to(r, functions.Ready)
		})
	case functions.Ready:
		r.Endpoint = "http://127.0.0.1:1/" + r.ID
	}
	a.push()
}

func (a *playAgent) Unload(_ context.Context, req functions.UnloadRequest) error {
	a.p.note("%s unload %s %s", a.id, req.ID, req.Reason)
	if err := a.obeys(req.Epoch); err != nil {
		return err
	}
	i := a.find(req.ID)
	if i < 0 || req.Reason == functions.ReasonCalledOff && a.reps[i].State != functions.Downloading {
		return nil
	}
	a.ends = append(a.ends, a.reps[i].Model+" "+req.Reason)
	a.forget(req.ID)
	a.push()
	return nil
}

func (a *playAgent) forget(id string) {
	if i := a.find(id); i >= 0 {
		a.reps, a.since = slices.Delete(a.reps, i, i+1), slices.Delete(a.since, i, i+1)
	}
}

func (a *playAgent) Sleep(_ context.Context, req functions.SleepRequest) error {
	a.p.note("%s sleep %s %d", a.id, req.ID, req.Level)
	if err := a.obeys(req.Epoch); err != nil {
		return err
	}
	i := a.find(req.ID)
	if i < 0 {
		return errors.New("no such replica")
	}
	r := a.reps[i]
	if req.Level == 0 {
		r.SleepLevel = 0
		a.to(r, functions.Loading)
		return nil
	}
	r.State, r.SleepLevel, a.since[i] = functions.Sleeping, 0, a.p.at
	a.push()
	a.p.after(time.Second, func() {
		if a.find(req.ID) >= 0 && r.State == functions.Sleeping {
			r.SleepLevel, r.Tier = req.Level, functions.TierSleeping
			a.push()
		}
	})
	return nil
}

// TestDeterminism: the same updates in the same order give the same commands and events
// in the same order. It runs minutes of a random world twice.
func TestDeterminism(t *testing.T) {
	logs := map[string]uint64{}
	for seed := range uint64(3) {
		one, two := randomWorld(t, seed), randomWorld(t, seed)
		for i := range one {
			if i >= len(two) || one[i] != two[i] {
				t.Fatalf("seed %d, line %d:\n%s\nthen\n%s", seed, i, one[i], two[min(i, len(two)-1)])
			}
		}
		if len(one) != len(two) {
			t.Fatalf("seed %d: %d lines, then %d", seed, len(one), len(two))
		}
		if len(one) < 300 {
			t.Errorf("seed %d: %d lines: the world is too quiet to prove anything", seed, len(one))
		}
		all := strings.Join(one, "\n")
		if other, ok := logs[all]; ok {
			t.Errorf("seeds %d and %d do the same", seed, other)
		}
		logs[all] = seed
	}
}

func randomWorld(t *testing.T, seed uint64) []string {
	fleet := func(n int) (ms []*functions.Model) {
		for i := range n {
			m := model(fmt.Sprint("m", i), func(s *functions.ModelSpec) {
				s.Scale.Idle = functions.Duration(time.Duration(5+i%7*10) * time.Second)
				s.Scale.Max = 1 + i%3
				s.Resources.GPUs = 1 + i%2
				if i%5 == 0 {
					s.Resources.GPUMemory = 20 << 30
				}
			})
			if i%4 == 0 {
				m = sleepy(m.Metadata.Name, func(s *functions.ModelSpec) { s.Scale.Idle = functions.Duration(20 * time.Second) })
			}
			m.Metadata.Namespace = "default"
			ms = append(ms, m)
		}
		return ms
	}
	p := newPlay(t, seed, fleet(24)...)
	rnd := p.rnd
	p.path.slots = 4
	p.path.span = func() time.Duration { return time.Duration(200+rnd.IntN(4000)) * time.Millisecond }
	p.delay = func() time.Duration { return time.Duration(rnd.IntN(30)) * time.Millisecond }
	for i := range 5 {
		h := p.agent(fmt.Sprint("n", i), 2)
		h.stage = func() time.Duration { return time.Duration(100+rnd.IntN(3000)) * time.Millisecond }
		h.boot = func() time.Duration { return time.Duration(500+rnd.IntN(4000)) * time.Millisecond }
		h.breaks = func(string) string {
			if rnd.IntN(20) == 0 {
				return "it fell over"
			}
			return ""
		}
	}
	for range 500 {
		p.pass(time.Duration(rnd.IntN(1300)) * time.Millisecond)
		name := fmt.Sprint("m", min(rnd.IntN(24), rnd.IntN(24)))
		h := p.agents[rnd.IntN(len(p.agents))]
		switch rnd.IntN(40) {
		case 0:
			h.mute = true
			p.after(time.Duration(1+rnd.IntN(12))*time.Second, func() { h.mute = false; h.push() })
		case 1:
			h.refuse = errVanished
			p.after(time.Duration(1+rnd.IntN(5))*time.Second, func() { h.refuse = nil })
		case 2:
			if len(h.reps) > 0 { // it dies
				h.forget(h.reps[rnd.IntN(len(h.reps))].ID)
				h.push()
			}
		case 3:
			if len(h.reps) > 0 {
				r := h.reps[rnd.IntN(len(h.reps))]
				r.Error = "killed"
				h.to(r, functions.Failed)
			}
		case 4:
			p.s.Stop(fname(name))
		case 5:
			p.s.WakeFor(fname(name), time.Duration(rnd.IntN(20))*time.Second)
		case 6:
			p.catalog.models = fleet(20 + rnd.IntN(5))
			p.s.Changed()
		case 7:
			p.path.leave(name)
		default:
			p.path.ask(name, 1+rnd.IntN(6))
		}
	}
	p.pass(3 * time.Minute)
	for _, e := range p.s.Events(0) {
		p.log = append(p.log, fmt.Sprint(e.Seq, e.At.Sub(p.began), e.Kind, e.Function, e.Replica, e.Node, e.Reason, e.Message))
	}
	for _, l := range p.path.list {
		p.log = append(p.log, fmt.Sprint(l.name, l.queued, l.active, l.failed))
	}
	return p.log
}
