package batches

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/batches/store"
	"github.com/thaw-dev/thaw/activator/spend"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// scheduler decides which line runs next. Only Run's goroutine uses it, but for what
// Server.mu guards.
type scheduler struct {
	s       *Server
	groups  map[string]*group // by team and model
	inputs  map[string]*input // of the jobs
	opening sync.WaitGroup
	workers sync.WaitGroup // lines and ends of jobs

	retryAt  map[string]time.Time // of batches that could not be opened or ended
	looked   time.Time            // when the models were looked at
	flushed  time.Time
	gpus     int       // that there are
	used     int       // of them, by functions in use that have no lines
	waits    bool      // a request that is no line waits
	waitedAt time.Time // when one did last

	spare map[string]int // lines that may be sent of a team's limits until the next look
}

// group is the lines of all batches of a team for one model.
type group struct {
	name    functions.Name // without an adapter; zero where the model's name is none
	model   string
	id      auth.Identity // of one who may use it
	queue   []queued      // guarded by Server.mu
	running int           // guarded by Server.mu
	outlook outlook       // guarded by Server.mu
	queued  int           // requests for the function that wait, ours too
	others  int           // requests for it that are not ours
	gpus    int           // that a replica takes
	window  bool          // its lines are being run: it has a place until they are through

	notBefore time.Time     // guarded by Server.mu
	pause     time.Duration // guarded by Server.mu
	failed    int           // how often the model could not be loaded since a line went well; guarded by Server.mu
	took      time.Duration // of a line, smoothed; guarded by Server.mu
}

// queued is a line that waits.
type queued struct {
	j *job
	p place
}

type opening struct {
	rec store.Record
	j   *job
	in  *input
	err error
}

// unopened is the oldest batch that has not ended and is not being run.
func (s *scheduler) unopened(now time.Time) (store.Record, bool) {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	if s.s.draining.Load() {
		return store.Record{}, false
	}
	list := s.s.store.Batches(func(r *store.Record) bool {
		return !r.Ended() && s.s.jobs[r.ID] == nil && !now.Before(s.retryAt[r.ID])
	})
	if len(list) == 0 {
		return store.Record{}, false
	}
	return list[len(list)-1], true
}

// open opens a batch; one whose lines have ended is published.
func (s *scheduler) open(ctx context.Context, r store.Record) opening {
	if r.Outcome != "" {
		return opening{rec: r, err: s.s.publish(r.Team, r.ID)}
	}
	j, in, err := s.s.open(ctx, r)
	return opening{r, j, in, err}
}

// retryJob is the pause before a batch is tried again that could not be opened or ended.
const retryJob = 10 * time.Second

func (s *scheduler) add(o opening) {
	parent := s.s
	switch {
	case errors.Is(o.err, store.ErrNotFound):
		s.fail(o.rec, []store.LineError{{Code: "file_not_found", Message: "The input file is gone."}})
		return
	case o.err != nil:
		parent.o.Log.Error("a batch cannot be gone on with; it is tried again", "id", o.rec.ID, "error", o.err)
		s.retryAt[o.rec.ID] = parent.o.Now().Add(retryJob)
		return
	case o.j == nil && o.in == nil: // it was published
		return
	case o.j == nil:
		s.fail(o.rec, o.in.faults)
		return
	}
	if o.rec.Status == store.Validating {
		r, err := parent.change(o.rec.Team, o.rec.ID, func(r *store.Record) bool {
			r.RequestCounts.Total = o.in.total
			if r.Status == store.Validating {
				r.Status, r.InProgressAt = store.InProgress, parent.now()
			}
			return true
		})
		if err != nil {
			o.j.in.Close()
			o.j.lines.Close()
			s.add(opening{rec: o.rec, err: err})
			return
		}
		o.rec = r
		parent.o.Log.Info("batch begun", "id", r.ID, "team", r.Team, "lines", o.in.total, "models", len(o.in.models))
	}
	parent.mu.Lock()
	defer parent.mu.Unlock()
	parent.jobs[o.rec.ID], s.inputs[o.rec.ID] = o.j, o.in
	if r, err := parent.store.Batch(o.rec.Team, o.rec.ID); err == nil && r.Status == store.Cancelling { // it came while the input was read
		o.j.end(store.Cancelled)
	}
	for model, places := range o.in.models {
		g := s.group(o.j.identity(), model)
		g.enqueue(functions.ConvertAll(places, func(p place) queued { return queued{o.j, p} })...)
	}
	clear(o.in.models)
	s.looked = time.Time{} // nothing is known of new groups
}

// group is the group of a team's model. Server.mu is held.
func (s *scheduler) group(id auth.Identity, model string) *group {
	key := id.Team + "\x00" + model
	g := s.groups[key]
	if g == nil {
		g = &group{model: model, id: id}
		if name, err := functions.ParseName(model, id.Team); err == nil {
			g.name = name.WithoutAdapter()
		}
		s.groups[key] = g
	}
	return g
}

// enqueue puts lines of one batch behind those whose deadline is not later. Server.mu is held.
func (g *group) enqueue(lines ...queued) {
	at, _ := slices.BinarySearchFunc(g.queue, lines[0].j.rec.ExpiresAt, func(x queued, deadline int64) int {
		if x.j.rec.ExpiresAt > deadline {
			return 1
		}
		return -1
	})
	g.queue = slices.Insert(g.queue, at, lines...)
}

// fail ends a batch whose input cannot be run.
func (s *scheduler) fail(r store.Record, faults []store.LineError) {
	r, err := s.s.change(r.Team, r.ID, func(r *store.Record) bool {
		if r.Status == store.Cancelling {
			r.Status, r.CancelledAt = store.Cancelled, s.s.now()
		} else {
			r.Status, r.FailedAt = store.Failed, s.s.now()
		}
		r.Errors = &store.LineErrors{Object: "list", Data: faults}
		return true
	})
	if err != nil {
		s.add(opening{rec: r, err: err})
		return
	}
	s.s.o.Log.Info("batch failed", "id", r.ID, "team", r.Team, "faults", len(faults), "first", faults[0].Message)
}

// patience is when to look again at the latest.
func (s *scheduler) patience() time.Duration {
	if s.s.store.Batches(func(r *store.Record) bool { return !r.Ended() }) == nil {
		return upkeepEvery
	}
	return pollEvery
}

// step ends what has to end and sends the lines that may run.
func (s *scheduler) step(ctx context.Context, now time.Time) {
	looks := now.Sub(s.looked) >= pollEvery
	s.endJobs(ctx, now, looks)
	if looks {
		s.looked = now
		s.look(now)
	}
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	if s.s.draining.Load() {
		return
	}
	s.openWindows(now)
	for _, g := range s.groups {
		for s.mayRun(g, now) {
			next := g.queue[0]
			g.queue = g.queue[1:]
			s.run(g, next)
		}
	}
}

// endJobs ends batches that are through or have expired, and with keys those whose key is
// gone.
func (s *scheduler) endJobs(ctx context.Context, now time.Time, keys bool) {
	parent := s.s
	parent.mu.Lock()
	defer parent.mu.Unlock()
	for id, j := range parent.jobs {
		in := s.inputs[id]
		if in == nil || now.Before(s.retryAt[id]) {
			continue // it is being ended
		}
		switch {
		case now.Unix() >= j.rec.ExpiresAt:
			j.end(store.Expired)
		case keys && j.outcome == "" && j.rec.KeyID != "" && !parent.o.HasKey(j.rec.KeyID):
			j.end(store.Completed)
			j.reason = "invalid_api_key"
		case j.left == 0:
			j.end(store.Completed)
		}
		if j.outcome == "" || j.running > 0 {
			continue
		}
		for _, g := range s.groups { // what has no entry gets one from finish
			g.queue = slices.DeleteFunc(g.queue, func(x queued) bool {
				if x.j == j {
					in.models[g.model] = append(in.models[g.model], x.p)
				}
				return x.j == j
			})
		}
		s.inputs[id] = nil
		s.workers.Go(func() {
			err := parent.finish(ctx, j, in)
			if err != nil && ctx.Err() == nil {
				parent.o.Log.Error("a batch could not be ended; it is tried again", "id", id, "error", err)
			}
			parent.mu.Lock()
			defer parent.mu.Unlock()
			if err != nil {
				s.inputs[id], s.retryAt[id] = in, now.Add(retryJob)
			} else {
				delete(s.inputs, id)
			}
			parent.wake()
		})
	}
	for key, g := range s.groups {
		if len(g.queue) == 0 && g.running == 0 {
			delete(s.groups, key)
		}
	}
	if now.Sub(s.flushed) >= flushEvery {
		s.flushed = now
		s.flush()
	}
}

// flush flushes what was appended since the last time: a power cut costs a second of work.
func (s *scheduler) flush() {
	for id, j := range s.s.jobs {
		if s.inputs[id] == nil {
			continue
		}
		s.workers.Go(func() {
			j.writing.Lock()
			defer j.writing.Unlock()
			if j.dirty && !j.ended {
				j.dirty = false
				if err := j.lines.Sync(); err != nil {
					s.s.o.Log.Error("the entries of a batch could not be flushed", "id", id, "error", err)
				}
			}
		})
	}
}

// look reads which models are READY and whose requests wait.
func (s *scheduler) look(now time.Time) {
	parent := s.s
	ours, byName := map[functions.Name]int{}, map[functions.Name][]*group{}
	for _, g := range s.groups {
		o, e := parent.lookUp(g.id, g.model)
		if e != nil {
			o = outlook{Ready: true} // its lines are answered with that error
		}
		parent.mu.Lock()
		g.outlook, g.queued, g.others = o, 0, 0
		ours[g.name] += g.running
		parent.mu.Unlock()
		byName[g.name] = append(byName[g.name], g)
	}
	s.waits, s.gpus, s.used = false, parent.o.GPUs(), 0
	clear(s.spare)
	for _, g := range s.groups {
		if _, ok := s.spare[g.id.Team]; !ok {
			s.spare[g.id.Team] = parent.o.Spare(g.id.Team)
		}
	}
	if len(s.groups) == 0 {
		return
	}
	parent.o.Demand(func(d Demand) bool {
		others := max(0, d.Active+d.Queued-ours[d.Name])
		for _, g := range byName[d.Name] {
			g.queued, g.others, g.gpus = d.Queued, others, d.GPUs
		}
		if d.Queued > 0 && others > 0 {
			s.waits, s.waitedAt = true, now
		}
		if others > 0 || byName[d.Name] == nil && !d.LastEnd.IsZero() && now.Sub(d.LastEnd) < parent.o.Quiet {
			s.used += d.GPUs
		}
		return true
	})
}

// openWindows decides which cold models may be loaded: the next one where there is room.
// Server.mu is held.
func (s *scheduler) openWindows(now time.Time) {
	held, gpus := 0, 0
	for _, g := range s.groups {
		// A model that was evicted, or cannot be loaded now, leaves its place to another.
		g.window = g.outlook.Local && (g.outlook.Ready || g.window && g.running > 0)
		if g.window {
			held++
			if g.others == 0 { // else it is counted in used
				gpus += g.gpus
			}
		}
	}
	for {
		var best *group
		for _, g := range s.groups {
			room := held == 0 || gpus+g.gpus <= s.gpus && g.gpus > 0
			if !g.urgent(now) {
				room = room && s.calm(now) && (s.used == 0 || s.used+gpus+g.gpus <= s.gpus)
			}
			if !g.window && room && g.outlook.Local && len(g.queue) > 0 && !now.Before(g.notBefore) && (best == nil || g.before(best, now)) {
				best = g
			}
		}
		if best == nil {
			return
		}
		best.window = true
		held++
		gpus += best.gpus
	}
}

// calm reports whether no request but lines has waited for a while.
func (s *scheduler) calm(now time.Time) bool {
	return !s.waits && (s.waitedAt.IsZero() || now.Sub(s.waitedAt) >= s.s.o.Quiet)
}

// before reports whether g is loaded before another: the one whose deadline is near, else
// the one with the most lines.
func (g *group) before(other *group, now time.Time) bool {
	if a, b := g.urgent(now), other.urgent(now); a != b {
		return a
	} else if a {
		return g.queue[0].j.rec.ExpiresAt < other.queue[0].j.rec.ExpiresAt
	}
	if len(g.queue) != len(other.queue) {
		return len(g.queue) > len(other.queue)
	}
	return g.model < other.model
}

// urgent reports whether a deadline demands that the group's lines run now.
func (g *group) urgent(now time.Time) bool {
	if len(g.queue) == 0 {
		return false
	}
	r := &g.queue[0].j.rec
	left := time.Unix(r.ExpiresAt, 0).Sub(now)
	window := time.Duration(r.ExpiresAt-r.CreatedAt) * time.Second
	return left < max(window/10, g.took*time.Duration(len(g.queue))/2)
}

// mayRun reports whether a line of the group may be sent now. Server.mu is held.
func (s *scheduler) mayRun(g *group, now time.Time) bool {
	parent := s.s
	if len(g.queue) == 0 || now.Before(g.notBefore) || parent.bytes > 0 && parent.bytes+int64(g.queue[0].p.size) > lineBytes {
		return false
	}
	if s.spare[g.id.Team] <= 0 && !g.urgent(now) {
		return false
	}
	most := parent.o.Concurrency
	if g.outlook.Local {
		switch {
		case !g.window, s.waits && !g.urgent(now):
			return false
		case !g.outlook.Ready:
			if !s.calm(now) && !g.urgent(now) {
				return false
			}
			most = 1
		case g.queued > 0:
			return false // its slots are taken
		case g.others > 0:
			most = max(1, most/2)
		}
	}
	return g.running < most
}

// run sends a line. Server.mu is held.
func (s *scheduler) run(g *group, x queued) {
	parent, j := s.s, x.j
	if j.outcome != "" { // endJobs takes it from the queue when no other line of it runs
		g.queue = append(g.queue, x)
		g.notBefore = parent.o.Now().Add(pollEvery)
		return
	}
	if x.p.cost == nil {
		x.p.cost = &spend.Entry{}
	}
	g.running++
	s.spare[g.id.Team]--
	failed := g.failed
	parent.begin(j, x.p)
	s.workers.Go(func() {
		began := parent.o.Now()
		a := parent.runLine(j, x.p, failed)
		if a.ended {
			if err := j.record(j.ctx, a.entry, x.p.cost); err != nil {
				a.ended = false
			}
		}
		parent.mu.Lock()
		defer parent.mu.Unlock()
		defer parent.wake()
		g.running--
		parent.done(j, x.p)
		now := parent.o.Now()
		if a.load {
			g.failed = min(g.failed+1, maxTries)
		} else if a.ended {
			g.failed = 0
		}
		if a.ended {
			g.outlook.Ready = g.outlook.Ready || a.entry.Response != nil && a.entry.Response.StatusCode == 200
			g.pause, g.took = 0, (g.took*7+now.Sub(began))/8
			return
		}
		if a.wears {
			x.p.tries++
		}
		g.enqueue(x)
		if j.ctx.Err() == nil {
			if !now.Before(g.notBefore) { // of the lines that fail together one makes the pause longer
				g.pause = min(max(leastPause, 2*g.pause), mostPause)
			}
			if until := now.Add(max(g.pause, a.pause)); until.After(g.notBefore) {
				g.notBefore = until
			}
		}
	})
}

// close waits for the lines that run, whose context has ended, and closes the files. What
// was opened meanwhile is closed too.
func (s *scheduler) close(opened <-chan opening) {
	s.opening.Wait()
	select {
	case o := <-opened:
		if o.j != nil {
			o.j.in.Close()
			o.j.lines.Close()
		}
	default:
	}
	s.workers.Wait()
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	for _, j := range s.s.jobs {
		if !j.ended {
			j.in.Close()
			if err := j.lines.Close(); err != nil {
				s.s.o.Log.Error("the entries of a batch could not be flushed", "id", j.rec.ID, "error", err)
			}
		}
	}
	clear(s.s.jobs)
}

func newFileID(size int64) *string {
	if size == 0 {
		return nil
	}
	return new("file-" + openai.NewID())
}
