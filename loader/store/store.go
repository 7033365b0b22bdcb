package store

import (
	"cmp"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/thaw-dev/thaw/loader/source"
)

type Options struct {
	// Dir is made if it is not there.
	Dir string
	// Budget is the most bytes the store may take; 0 means all that the disk has.
	Budget int64
	// High and Low are watermarks, parts of the budget (or of the disk): if more than
	// High would be taken, checkpoints are evicted down to Low, so that not every
	// staging evicts a little; 0.95 and 0.85 if 0. A model that needs more than High
	// and fits the budget is admitted.
	High, Low float64
	// KeepFree is left free on the disk for everything else (logs first of all).
	KeepFree int64
	// FreeShare is the part of the disk below which, of what is free, unused checkpoints are
	// evicted. A model that needs more is admitted.
	FreeShare float64
	// DirectFrom is the file size from which on the page cache is bypassed; 32 MiB if
	// 0, never if negative.
	DirectFrom int64
	// Private closes the store to other users. A user who receives an open checkpoint
	// folder (Entry.Path) can read its files and cannot reach anything around it.
	Private bool
	// NoDigests computes no digests of blocks, and nothing can be published: a
	// measurement tells their cost by it.
	NoDigests bool
	// Log may be nil.
	Log *slog.Logger
	// Step, if set, is called with a name before each step that changes the disk; an
	// error fails the step. Tests stop the process there.
	Step func(name string) error
	// Fsync replaces (*os.File).Sync if set. Tests record the order of a commit with it.
	Fsync func(*os.File) error
}

// Store is a folder of checkpoints. Its methods are safe for concurrent use, also by
// several processes on the same folder.
type Store struct {
	// Plans finds checkpoints by what they were staged from.
	Plans PlanIndex

	o                               Options
	layout                          *layout
	evictions, evicted, quarantined atomic.Int64
}

// Stats is what a store has done since it was opened.
type Stats struct {
	Evictions    int64 // checkpoints and unfinished stagings
	EvictedBytes int64
	Quarantined  int64 // files that Verify took out
}

// Stats counts what this process did.
func (s *Store) Stats() Stats {
	return Stats{Evictions: s.evictions.Load(), EvictedBytes: s.evicted.Load(), Quarantined: s.quarantined.Load()}
}

// Open makes the folders and removes what earlier processes left half deleted.
func Open(o Options) (*Store, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	abs, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, diskError("", err)
	}
	o.High = cmp.Or(o.High, 0.95)
	o.Low = cmp.Or(o.Low, 0.85)
	o.DirectFrom = cmp.Or(o.DirectFrom, directFrom)
	at := &layout{dir: abs, private: o.Private, step: o.Step, fsync: o.Fsync}
	if at.step == nil {
		at.step = func(string) error { return nil }
	}
	if at.fsync == nil {
		at.fsync = (*os.File).Sync
	}
	s := &Store{Plans: PlanIndex{at}, o: o, layout: at}
	for _, d := range folders {
		if err = os.MkdirAll(s.layout.path(d), s.layout.folderMode()); err != nil {
			return nil, diskError("", err)
		}
	}
	if o.Private {
		if err := s.layout.makePrivate(); err != nil {
			return nil, diskError("", err)
		}
	}
	// A process that holds the lock sweeps by itself.
	lock, err := lockFile(s.layout.path("lock"), true, false)
	if errors.Is(err, errBusy) {
		return s, nil
	}
	if err != nil {
		return nil, diskError("", err)
	}
	defer lock.Close()
	if err := s.sweep(); err != nil {
		return nil, diskError("", err)
	}
	return s, nil
}

// folders are made when the store is opened.
var folders = []string{"blobs/tree", "checkpoints", "sources", "known", "parts", "coming", "trash"}

// sweep removes half-made folders: the store's lock is held, so they belong to
// processes that are gone.
func (s *Store) sweep() error {
	list, err := os.ReadDir(s.layout.path("trash"))
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := os.RemoveAll(s.layout.path("trash", e.Name())); err != nil {
			return err
		}
	}
	if list, err = os.ReadDir(s.layout.path("checkpoints")); err != nil {
		return err
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), newPrefix) {
			if err := os.RemoveAll(s.layout.path("checkpoints", e.Name())); err != nil {
				return err
			}
		} else if err := s.dropOtherFormat(e.Name()); err != nil {
			return err
		}
	}
	if list, err = os.ReadDir(s.layout.path("coming")); err != nil {
		return err
	}
	for _, e := range list {
		if f, err := lockFile(s.layout.path("coming", e.Name()), true, false); err == nil {
			f.remove()
		}
	}
	if _, err = s.layout.dropBlobs(); err != nil {
		return err
	}
	return s.Plans.dropKnown()
}

// dropOtherFormat deletes a checkpoint of another version of thaw, unless it is pinned or a
// process uses it. Its manifest names digests of another kind: it cannot be verified or
// shared.
func (s *Store) dropOtherFormat(h string) error {
	e, err := s.entry(h)
	if source.KindOf(err) != source.Missing {
		return nil
	}
	if _, err := os.Stat(s.layout.path("checkpoints", h, pinName)); err == nil && e.Format != format {
		s.o.Log.Warn("checkpoint of another version of thaw is not used, and stays because it is pinned: delete its folder if no earlier thaw "+
			"needs it", "folder", s.layout.path("checkpoints", h))
		return nil
	}
	ok, err := s.evictCheckpoint(h)
	if ok && err == nil {
		s.o.Log.Warn("checkpoint of another version of thaw deleted, it is staged again when a model needs it", "digest", "sha256:"+h)
	}
	return err
}

const newPrefix = ".new-"

// format is the version of the layout and of the manifests. 1 named files by the SHA-256
// of all their bytes; 2 names them by their tree digest.
const format = 2

func diskError(file string, err error) error {
	if err == nil || source.KindOf(err) != "" {
		return err
	}
	if isDiskFull(err) {
		return &source.Error{Kind: source.NoSpace, File: file, Detail: "the store's disk is full", Err: err, Fix: freeDisk}
	}
	return &source.Error{Kind: source.Broken, File: file, Detail: "the store's disk", Err: err, Fix: diskFix(err)}
}
