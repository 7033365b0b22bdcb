package simulate

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/runtime/engine"
)

// replica is one engine on a node, from the load command to its end.
//
//	READY = max(bytes arriving, engine booting) + load + warm-up
type replica struct {
	st   *State
	n    *node
	f    *function
	id   string
	spec *functions.ModelSpec
	eng  *fleet.Engine
	gen  uint32 // generation of its timers: earlier ones are cancelled

	state     functions.State
	since     time.Duration
	tier      functions.Tier // tier its bytes came from
	err       string
	shortOf   functions.Shortage // of a failed start
	process   bool               // the process runs: the start can no longer be cancelled
	hung      bool
	level     int  // sleep level
	deepSleep bool // it sleeps, or falls asleep, without its weights

	start      start
	checkpoint *simCheckpoint
	transfer   *transfer // the current transfer of its bytes

	work     work
	drainEnd time.Duration
	whenIdle func() // called once no request is in flight

	lastStatus functions.ReplicaStatus // the last status sent; reused while nothing changes

	use gpuUse
}

// start is the progress of a replica's start or wake-up.
type start struct {
	// Drawn at the load: the nth start of a function draws the same times in every run
	// of a seed, so that policies are compared on equal draws.
	draws StartTimes
	began time.Duration
	// Phases, relative to began; one whose end precedes its start is in progress.
	spans [4]struct {
		from, to time.Duration
		set      bool
	}
	staged, booted bool
}

const (
	planTakes      = 200 * time.Millisecond // listing the source
	execTakes      = 20 * time.Millisecond  // from the load to the process, with the bytes on the node
	exitTakes      = 300 * time.Millisecond // from SIGTERM to the end of the process
	hangProbeDelay = 5 * time.Second        // delay before a silent engine is asked for one token
	deepSleepLevel = 2                      // the sleep level that drops the weights and keeps the process
)

const (
	spanStage = iota
	spanSpawn
	spanLoad
	spanWarmup
)

var spanPhases = [4]functions.Phase{functions.PhaseStage, functions.PhaseSpawn, functions.PhaseLoad, functions.PhaseWarmup}

// Event kinds of a replica.
const (
	repPlanned uint8 = iota // the source is listed, or the bytes are on the node: the engine starts
	repBooted
	repWarm
	repExited
	repDrained // the drain has ended
	repHang    // check whether it hangs
	repRisen
	repLate // a phase's deadline passed
	repForget
)

func (s *State) newReplica(n *node, req functions.LoadRequest) *replica {
	f := s.functionOf(functions.Name{Team: req.Team, Name: req.Model})
	spec := &req.Spec
	r := &replica{
		st: s, n: n, f: f, id: req.ID, spec: spec, eng: s.engine(spec.Engine), gen: 1,
		state: functions.Downloading, since: s.clock.now, tier: functions.TierRemote, start: start{began: s.clock.now},
		work: work{slots: max(spec.Scale.Target, 1)}, use: gpuUse{gpus: req.GPUs, last: s.clock.now},
	}
	r.holdGPUs()
	s.reps[r.id] = r
	f.starts++
	r.draw(f.starts)
	n.trimPageCache()
	return r
}

func (r *replica) draw(nth int) {
	e := r.eng
	rng := rand.New(rand.NewPCG(r.st.c.Seed^r.f.drawSeed, uint64(nth)))
	scatter := func(median time.Duration) time.Duration {
		if e.Spread == 0 {
			return median
		}
		return time.Duration(float64(median) * math.Exp(float64(e.Spread)/100*rng.NormFloat64()))
	}
	r.start.draws = StartTimes{
		Exec: cmp.Or(e.Exec.Std(), execTakes),
		Plan: scatter(cmp.Or(e.Plan.Std(), planTakes)), Spawn: scatter(e.Spawn.Std()), Warmup: scatter(e.Warmup.Std()),
		Rise: scatter(e.Rise.Std()), Exit: scatter(cmp.Or(e.Exit.Std(), exitTakes)),
	}
	if times := r.st.c.Times; times != nil {
		r.start.draws = times(r.f.name, nth, r.start.draws)
	}
}

func (r *replica) generation() uint32 { return r.gen }

func (r *replica) after(d time.Duration, event uint8) {
	r.st.clock.set(r.st.clock.now+d, r, event, r.gen)
}

// begin begins a phase; end ends it.
func (s *start) begin(span int, now time.Duration) {
	p := &s.spans[span]
	p.from, p.to, p.set = now-s.began, -1, true
}

func (s *start) end(span int, now time.Duration) { s.spans[span].to = now - s.began }

// isStaging reports whether bytes are staged for it, or will be.
func (s *start) isStaging() bool { return s.spans[spanStage].set && !s.staged }

// phases lists the phases as statuses have them.
func (s *start) phases(now time.Duration) (list []functions.Span) {
	for i := range s.spans {
		if p := &s.spans[i]; p.set {
			to := p.to
			if to < 0 {
				to = now - s.began
			}
			if list == nil {
				list = make([]functions.Span, 0, len(s.spans))
			}
			list = append(list, functions.Span{Phase: spanPhases[i], Start: p.from.Seconds(), Duration: (to - p.from).Seconds()})
		}
	}
	return list
}

func (r *replica) enter(s functions.State) {
	r.account()
	r.state, r.since = s, r.st.clock.now
	r.n.push()
}

// begin stages the bytes and starts the engine.
func (r *replica) begin() {
	r.setDeadline(r.spec.Deadlines.Stage)
	if r.f.source != "" {
		r.checkpoint = r.n.store.reserve(r.f.source, r.f.size)
		if r.checkpoint == nil {
			r.finish(functions.Failed, "insufficient_disk: the store has no room for "+r.f.size.String())
			return
		}
		if !r.checkpoint.complete() {
			r.after(r.start.draws.Plan, repPlanned)
			return
		}
	}
	r.tier, r.start.staged = functions.TierNVMe, true
	if r.checkpoint != nil && r.checkpoint.memory {
		r.tier = functions.TierDRAM
	}
	r.after(r.start.draws.Exec, repPlanned)
}

func (r *replica) act(event uint8) {
	switch event {
	case repPlanned:
		r.process = true
		r.start.begin(spanSpawn, r.st.clock.now)
		r.after(r.start.draws.Spawn, repBooted)
		if !r.start.staged {
			r.fetch()
		} else {
			r.enter(functions.Loading)
			r.setDeadline(r.spec.Deadlines.Start)
		}
		r.n.push()
	case repBooted:
		r.start.end(spanSpawn, r.st.clock.now)
		r.start.booted = true
		if cause := r.st.Faults.breaks[r.f.name]; cause != "" {
			r.shortOf = engine.ShortOf(cause)
			r.finish(functions.Failed, cause)
			return
		}
		r.loadIfReady()
	case repWarm:
		r.start.end(spanWarmup, r.st.clock.now)
		r.gen++ // cancels its deadlines
		r.st.tally.Starts++
		r.enter(functions.Ready)
		if r.hung {
			r.after(hangProbeDelay, repHang)
		}
	case repRisen:
		r.gen++
		r.st.tally.Starts++
		r.st.tally.WakeUps++
		r.level = 0
		r.enter(functions.Ready)
	case repExited:
		r.finish(functions.Unloaded, "")
	case repDrained:
		r.failRequests()
		r.exit()
	case repHang:
		if r.hung {
			r.finish(functions.Failed, "the engine hangs: it was asked for one token and gave none")
		}
	case repLate:
		cause := "its bytes did not come within the deadline"
		if r.start.staged {
			cause = "the engine did not start within the deadline"
		}
		r.finish(functions.Failed, cause)
	case repForget:
		r.n.forget(r)
		r.n.note()
	}
}

// setDeadline sets the deadline of the next phase; the next generation cancels it.
func (r *replica) setDeadline(d functions.Duration) {
	if d > 0 {
		r.after(d.Std(), repLate)
	}
}

// fetch stages the missing bytes. If another replica is staging the same checkpoint, it
// waits for that transfer.
func (r *replica) fetch() {
	if r.checkpoint.complete() {
		r.onStaged()
		return
	}
	r.start.begin(spanStage, r.st.clock.now)
	r.n.staging++
	for _, x := range r.n.reps {
		if x != r && x.checkpoint == r.checkpoint && x.transfer != nil && !x.start.staged {
			return // checkpointArrived continues it
		}
	}
	r.pull()
}

// checkpointArrived handles the bytes of a checkpoint, complete or cut short by the end of the
// replica that staged them. Replicas that wait for them continue.
func (n *node) checkpointArrived(b *simCheckpoint) {
	for _, r := range slices.Clone(n.reps) {
		if r.checkpoint != b || r.transfer != nil || !r.start.isStaging() {
			continue
		}
		if !b.complete() {
			r.pull()
			return
		}
		r.onStaged()
	}
}

func (r *replica) pull() {
	r.transfer = r.st.startTransfer(float64(r.checkpoint.total-r.checkpoint.bytes), func() {
		r.transfer = nil
		r.st.tally.staged += float64(r.checkpoint.total - r.checkpoint.bytes)
		r.checkpoint.bytes = r.checkpoint.total
		r.n.store.version++
		r.onStaged()
		r.n.checkpointArrived(r.checkpoint)
	}, r.n.link)
}

// onStaged handles staged bytes: the engine loads them once it has booted.
func (r *replica) onStaged() {
	if r.start.isStaging() {
		r.start.end(spanStage, r.st.clock.now)
		r.n.staging--
	}
	r.start.staged = true
	r.n.store.use(r.checkpoint)
	r.gen++ // cancels the staging deadline; the boot timer is set again below
	if !r.start.booted {
		left := r.start.spans[spanSpawn].from + r.start.draws.Spawn - (r.st.clock.now - r.start.began)
		r.after(max(left, 0), repBooted)
	}
	r.setDeadline(r.spec.Deadlines.Start)
	r.enter(functions.Loading)
	r.loadIfReady()
}

// loadIfReady copies the weights to the GPUs once they are staged and the engine has booted.
func (r *replica) loadIfReady() {
	if !r.start.staged || !r.start.booted || r.transfer != nil {
		return
	}
	r.start.begin(spanLoad, r.st.clock.now)
	from := r.n.disk
	if r.checkpoint == nil || r.checkpoint.memory {
		from = r.n.copy
	}
	r.transfer = r.st.startTransfer(float64(r.f.size), func() {
		r.transfer = nil
		r.start.end(spanLoad, r.st.clock.now)
		if r.checkpoint != nil && !r.checkpoint.memory {
			r.checkpoint.memory = true
			r.n.store.use(r.checkpoint)
			r.n.store.version++
			r.n.trimPageCache()
		}
		r.start.begin(spanWarmup, r.st.clock.now)
		r.after(r.start.draws.Warmup, repWarm)
		r.n.note()
	}, from)
	r.n.note()
}

func (r *replica) unload(drain time.Duration) {
	switch r.state {
	case functions.Draining:
		if end := r.st.clock.now + drain; end < r.drainEnd {
			r.drainEnd = end
			r.after(drain, repDrained)
		}
	case functions.Ready:
		r.gen++
		r.drainEnd = r.st.clock.now + drain
		r.enter(functions.Draining)
		r.whenIdle = r.exit
		r.continueWhenIdle()
		if len(r.work.requests) > 0 {
			r.after(drain, repDrained)
		}
	default:
		r.gen++
		if !r.process {
			r.finish(functions.Unloaded, "")
			return
		}
		r.stop()
		r.enter(functions.Draining)
		r.failRequests()
		r.exit()
	}
}

// exit stops the engine's process.
func (r *replica) exit() {
	r.gen++
	r.whenIdle = nil
	r.after(r.start.draws.Exit, repExited)
}

// continueWhenIdle runs the pending step once no request is in flight.
func (r *replica) continueWhenIdle() {
	if len(r.work.requests) == 0 && r.whenIdle != nil {
		next := r.whenIdle
		r.whenIdle = nil
		next()
	}
}

// fallAsleep frees the GPUs once no request is in flight.
func (r *replica) fallAsleep(level int) {
	if r.state != functions.Ready {
		return
	}
	r.gen++
	r.enter(functions.Sleeping)
	r.level, r.deepSleep = 0, level >= deepSleepLevel
	size := float64(r.f.size)
	if r.deepSleep {
		size = 0 // the weights are dropped
	}
	r.whenIdle = func() {
		r.transfer = r.st.startTransfer(size, func() {
			r.transfer = nil
			r.account()
			r.level = level
			r.tier = functions.TierSleeping
			r.freeGPUs()
			r.n.trimPageCache()
			r.n.push()
		}, r.n.copy)
	}
	r.continueWhenIdle()
}

// wakeUp copies the weights back.
func (r *replica) wakeUp() {
	if r.state != functions.Sleeping {
		return
	}
	if r.level == 0 { // it was not asleep yet
		r.stop()
		r.whenIdle = nil
		r.enter(functions.Ready)
		return
	}
	for _, g := range r.use.gpus {
		if r.n.taken[g]+r.n.share(r.spec.Resources) > 1+1e-9 {
			r.st.tally.refusedForSpace++
			r.finish(functions.Failed, "its GPU is taken")
			return
		}
	}
	r.enter(functions.Loading)
	r.holdGPUs()
	r.start.began = r.st.clock.now
	for i := range r.start.spans {
		r.start.spans[i].set = false
	}
	r.start.begin(spanLoad, r.st.clock.now)
	from := r.n.copy
	if r.deepSleep && r.checkpoint != nil && !r.checkpoint.memory {
		from = r.n.disk
	}
	r.deepSleep = false
	r.transfer = r.st.startTransfer(float64(r.f.size), func() {
		r.transfer = nil
		r.start.end(spanLoad, r.st.clock.now)
		r.after(r.start.draws.Rise, repRisen)
	}, from)
}

func (r *replica) holdGPUs() {
	r.account()
	r.use.hold = 0
	for _, g := range r.use.gpus {
		r.n.taken[g] += r.n.share(r.spec.Resources)
		r.use.hold += r.n.share(r.spec.Resources)
	}
}

func (r *replica) freeGPUs() {
	if r.use.hold == 0 {
		return
	}
	r.account()
	r.use.hold = 0
	for _, g := range r.use.gpus {
		if r.n.taken[g] -= r.n.share(r.spec.Resources); r.n.taken[g] < 1e-9 {
			r.n.taken[g] = 0
		}
	}
}

// stop stops its transfer; the bytes that arrived are kept.
func (r *replica) stop() {
	t, left := r.transfer, 0.0
	if r.transfer = nil; t != nil {
		left = t.stop()
	}
	if !r.start.isStaging() {
		return
	}
	r.start.staged = true
	r.n.staging--
	if t != nil {
		r.st.tally.staged += float64(r.checkpoint.total-r.checkpoint.bytes) - left
		r.checkpoint.bytes = r.checkpoint.total - functions.Bytes(left)
		r.n.checkpointArrived(r.checkpoint)
	}
}

// finish ends the replica in any state; its requests fail.
func (r *replica) finish(s functions.State, cause string) {
	if r.state.Over() {
		return
	}
	r.gen++
	if r.state != functions.Ready && r.state != functions.Draining && r.state != functions.Sleeping {
		r.st.tally.StartsLost++
	}
	r.whenIdle = nil
	r.stop()
	r.failRequests()
	r.freeGPUs()
	r.enter(s)
	r.err = cause
	r.process = false
	if r.checkpoint != nil {
		r.checkpoint.pins--
		r.checkpoint = nil
	}
	r.f.team.held = r.f.team.held.plus(r.use.time(), 1)
	r.use.held = GPUHours{}
	r.after(keepEnded, repForget)
}

// status fills in its heartbeat status. Unless something changed, it reuses the last
// one.
func (r *replica) status(s *functions.ReplicaStatus) {
	now := r.st.clock.now
	if r.lastStatus.State == r.state && (r.state == functions.Ready || r.state.Over()) {
		*s = r.lastStatus
		s.InFlight, s.Since = len(r.work.requests), (now - r.since).Milliseconds()
		return
	}
	defer func() { r.lastStatus = *s }()
	*s = functions.ReplicaStatus{
		ID: r.id, Team: r.f.name.Team, Model: r.f.name.Name, State: r.state, Tier: r.tier, Percent: -1,
		Error: r.err, ShortOf: r.shortOf, Spec: r.spec, GPUs: r.use.gpus, Start: functions.StartPlain, SleepLevel: r.level,
		InFlight: len(r.work.requests), Since: (now - r.since).Milliseconds(), Phases: r.start.phases(now),
	}
	if r.state == functions.Ready || r.state == functions.Sleeping || r.state == functions.Draining {
		s.Endpoint = r.n.url() + "/replicas/" + r.id
	}
	if r.f.source != "" {
		s.TotalBytes, s.Bytes = r.f.size, r.f.size
		if !r.start.staged && r.checkpoint != nil {
			s.Bytes = r.checkpoint.bytes
			if f := r.transfer; f != nil {
				s.Bytes = r.checkpoint.total - functions.Bytes(max(0, f.left-f.rate*(now-f.last).Seconds()))
			}
			s.Percent = int(100 * float64(s.Bytes) / float64(max(s.TotalBytes, 1)))
		}
	}
}

func (r *replica) hostMemory() functions.Bytes {
	if r.state.Over() {
		return 0
	}
	m := r.spec.Resources.Memory
	if r.state == functions.Sleeping && r.spec.Resources.GPUs > 0 && !r.deepSleep {
		m += r.f.size
	}
	return m
}
