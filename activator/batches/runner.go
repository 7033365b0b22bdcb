package batches

import (
	"context"
	"time"

	"github.com/thaw-dev/thaw/activator/batches/store"
)

const (
	pollEvery   = 100 * time.Millisecond // while lines wait for something
	upkeepEvery = time.Minute
	flushEvery  = time.Second
	// lineBytes bounds the lines that run, in bytes; one line may always run.
	lineBytes = 64 << 20
)

// Run runs the batches until ctx ends. Then the lines that run are cut, and what has no entry
// is run by the next process.
func (s *Server) Run(ctx context.Context) error {
	q := &scheduler{s: s, groups: map[string]*group{}, inputs: map[string]*input{}, retryAt: map[string]time.Time{}, spare: map[string]int{}}
	opened := make(chan opening, 1)
	opening, upkeep := false, time.Time{}
	defer q.close(opened)
	for {
		now := s.o.Now()
		if now.Sub(upkeep) >= upkeepEvery {
			upkeep = now
			if err := s.store.Expire(now); err != nil {
				s.o.Log.Error("files that have expired cannot be removed", "error", err)
			}
			// the ledger forgets the logs of the batches that have ended
			logs := map[string]bool{}
			for _, r := range s.store.Batches(func(r *store.Record) bool { return !r.Ended() }) {
				logs[logOf(r.ID, false)], logs[logOf(r.ID, true)] = true, true
			}
			s.o.Ledger.Keep(func(log string) bool { return logs[log] })
		}
		if !opening {
			if r, ok := q.unopened(now); ok {
				opening = true
				q.opening.Go(func() { opened <- q.open(ctx, r) })
			}
		}
		q.step(ctx, now)
		select {
		case <-ctx.Done():
			return nil
		case o := <-opened:
			opening = false
			q.add(o)
		case <-s.kick:
		case <-time.After(q.patience()):
		}
	}
}

// Drain sends no more lines, and returns when none runs or ctx has ended.
func (s *Server) Drain(ctx context.Context) {
	s.mu.Lock()
	s.draining.Store(true)
	idle := make(chan struct{})
	if s.idle = idle; s.running == 0 {
		close(idle)
		s.idle = nil
	}
	s.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// begin counts a line that runs; done follows.
func (s *Server) begin(j *job, p place) {
	j.running++
	s.running++
	s.bytes += int64(p.size)
}

func (s *Server) done(j *job, p place) {
	j.running--
	s.bytes -= int64(p.size)
	if s.running--; s.running == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// finish ends the lines of a job that have no entry, and publishes its files. It may be
// called again after it failed.
func (s *Server) finish(ctx context.Context, j *job, in *input) error {
	s.mu.Lock()
	outcome, reason := j.outcome, j.reason
	s.mu.Unlock()
	if !j.ended {
		if reason != "" {
			for model, places := range in.models {
				for len(places) > 0 {
					l, err := places[0].read(j.in)
					if err != nil {
						return err
					}
					if err := j.record(ctx, entry{CustomID: l.CustomID, Error: &failure{reason, failures[reason]}}, places[0].cost); err != nil {
						return err
					}
					places = places[1:]
					in.models[model] = places
				}
			}
		}
		j.writing.Lock()
		err := j.lines.Close()
		j.ended = err == nil
		j.writing.Unlock()
		if err != nil {
			return err
		}
		j.in.Close()
	}
	if err := s.o.Ledger.Flush(); err != nil { // the entries are not replayed once the batch has its outcome
		return err
	}
	output, failed := j.lines.Sizes()
	_, err := s.change(j.rec.Team, j.rec.ID, func(r *store.Record) bool {
		if r.Outcome != "" {
			return false // finish was called before
		}
		if r.Outcome = outcome; r.Status != store.Cancelling {
			r.Status, r.FinalizingAt = store.Finalizing, s.now()
		}
		r.RequestCounts, r.Usage = j.counts, j.used()
		r.OutputFileID, r.ErrorFileID = newFileID(output), newFileID(failed)
		return true
	})
	if err != nil {
		return err
	}
	return s.publish(j.rec.Team, j.rec.ID)
}

// publish makes the files of a batch whose lines have ended, and gives it its last status.
func (s *Server) publish(team, id string) error {
	r, err := s.store.Batch(team, id)
	if err == nil {
		err = s.store.Publish(r, *s.now())
	}
	if err == nil {
		r, err = s.change(team, id, func(r *store.Record) bool {
			r.Status = r.Outcome
			switch now := s.now(); r.Outcome {
			case store.Completed:
				r.CompletedAt = now
			case store.Expired:
				r.ExpiredAt = now
			case store.Cancelled:
				r.CancelledAt = now
			}
			return true
		})
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.jobs, id)
	s.mu.Unlock()
	s.o.Log.Info("batch ended", "id", id, "team", team, "status", r.Status, "lines", r.RequestCounts.Total, "completed",
		r.RequestCounts.Completed, "failed", r.RequestCounts.Failed)
	return nil
}
