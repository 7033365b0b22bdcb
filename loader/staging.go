package loader

import (
	"context"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/loader/store"
)

type State string

// The states, in order; Ready and Failed are ends.
const (
	Waiting    State = "waiting"    // another process stages it
	Planning   State = "planning"   // the source is listed
	Fetching   State = "fetching"   // bytes arrive
	Verifying  State = "verifying"  // all blocks are here; the digests of whole files are computed
	Publishing State = "publishing" // all files are verified
	Ready      State = "ready"
	Failed     State = "failed"
)

type Progress struct {
	State State
	// Done of Total bytes are here; Total is 0 before the plan is known.
	Done, Total int64
	// Resumed is how many of Done were here when the staging began.
	Resumed int64
	// Rate in bytes a second, over the last seconds; 0 when unknown.
	Rate float64
	// Note is for people: what of the source is not staged. It may be empty.
	Note string
	// Problem is for people: why the source is asked again, or why files of it that were
	// staged before are used. It may be empty.
	Problem string
	// Err says why, when State is Failed.
	Err error
}

// Percent of the bytes that are here, 0 to 100.
func (p Progress) Percent() int {
	if p.State == Ready {
		return 100
	}
	if p.Total <= 0 {
		return 0
	}
	return int(p.Done * 100 / p.Total)
}

// ETA is the time to the last byte at the present rate; ok is false if it is unknown.
func (p Progress) ETA() (eta time.Duration, ok bool) {
	switch {
	case p.State == Ready || p.State == Publishing || p.State == Verifying:
		return 0, true
	case p.State != Fetching || p.Rate <= 0 || p.Total <= 0:
		return 0, false
	}
	return time.Duration(float64(p.Total-p.Done) / p.Rate * float64(time.Second)), true
}

// File is a file of a checkpoint. Its Tree is empty in a folder used in place without a
// demanded digest.
type File = store.File

// Checkpoint is a model's files, verified, in one folder.
type Checkpoint struct {
	// Path of the folder that holds the files under their own names.
	Path string
	// Digest of all files ("sha256:…"). Empty for a folder used in place
	// unless the caller demanded one.
	Digest string
	Files  []File
	Bytes  int64
	// InPlace: the folder is the user's own and not in the store.
	InPlace bool
	// Lease keeps it from being evicted; nil, which may be released too, for a
	// folder used in place.
	Lease *store.Lease
}

// Staging is one caller's hold on a staging that others may share. Its methods are
// safe for concurrent use.
type Staging struct {
	job *stagingJob

	mu       sync.Mutex
	priority Priority
	released bool
}

func (s *Staging) Progress() Progress { return s.job.progress.now() }

// Events returns a channel that holds the latest progress only; it is closed after the
// last. A caller that does not read to its end calls stop.
func (s *Staging) Events() (events <-chan Progress, stop func()) { return s.job.progress.subscribe() }

// PlanKey returns the key of the last listing: equal for the same files in the same
// versions everywhere, "" before the first listing.
func (s *Staging) PlanKey() string {
	s.job.mu.Lock()
	defer s.job.mu.Unlock()
	return s.job.listed
}

// Wait returns the checkpoint with a lease of the caller's own, or the staging's
// error. ctx bounds the wait only.
func (s *Staging) Wait(ctx context.Context) (*Checkpoint, error) {
	if err := awaitClosed(ctx, s.job.done); err != nil {
		return nil, err
	}
	return s.job.checkpoint()
}

// awaitClosed waits for a channel to be closed. It returns ctx's cause if ctx ends before.
func awaitClosed(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// SetPriority sets this holder's priority. A staging has the highest of its holders'.
func (s *Staging) SetPriority(p Priority) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released || s.priority == p {
		return
	}
	s.job.priorities.add(p, +1)
	s.job.priorities.add(s.priority, -1)
	s.priority = p
}

// Release ends the hold. The last release cancels a running staging; leases from Wait
// stay.
func (s *Staging) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return
	}
	s.released = true
	s.job.priorities.add(s.priority, -1)
	s.job.release()
}
