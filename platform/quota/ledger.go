package quota

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/platform/placement"
)

const (
	saveEvery = 30 * time.Second // between two writes of the ledger
	maxLedger = 16 << 20         // the largest ledger that is read
)

// Ledger stores the accounts of teams across restarts: in a file, or with the
// function given to NewLedger. A Ledger belongs to one Accounts.
type Ledger struct {
	save    func(text []byte) error
	day     int64
	entries map[string]Entry
	written placement.Instant
}

type ledgerFile struct {
	Day   int64            `json:"day"` // days since 1970, UTC
	Teams map[string]Entry `json:"teams"`
}

// OpenLedger reads the ledger at path, if there is one. A file that does not parse
// is renamed to path.damaged and reported; the Ledger is usable and empty then. There is none if
// the file cannot be read.
func OpenLedger(path string) (*Ledger, error) {
	l := &Ledger{save: func(text []byte) error { return durable.WriteFile(path, text, 0o600) }, entries: map[string]Entry{}}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	var data []byte
	if err == nil && info.Size() <= maxLedger {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, err
	}
	if info.Size() > maxLedger {
		err = fmt.Errorf("%d bytes are too many", info.Size())
	} else {
		err = l.restore(data)
	}
	if err != nil {
		aside := path + ".damaged"
		return l, fmt.Errorf("accounts of teams: %s is put aside as %s and begun anew: %w", path, filepath.Base(aside),
			errors.Join(err, os.Rename(path, aside)))
	}
	return l, nil
}

// NewLedger restores the ledger from text, an earlier argument of save; empty for none.
// save is called between turns and must return at once. The Ledger is usable and empty
// if text does not parse.
func NewLedger(text []byte, save func(text []byte)) (*Ledger, error) {
	l := &Ledger{save: func(text []byte) error { save(text); return nil }, entries: map[string]Entry{}}
	if len(text) == 0 {
		return l, nil
	}
	return l, l.restore(text)
}

// restore reads the entries; on an error l is unchanged.
func (l *Ledger) restore(data []byte) error {
	f := ledgerFile{Teams: map[string]Entry{}}
	if err := json.Unmarshal(data, &f); err != nil {
		return err
	}
	for name, e := range f.Teams {
		for _, x := range []float64{e.Today, e.Total, e.Used, e.Hosted} {
			if x < 0 || math.IsNaN(x) || math.IsInf(x, 0) {
				return fmt.Errorf("team %.80q: %v is no account", name, x)
			}
		}
		if !functions.IsLabel(name) {
			return fmt.Errorf("%.80q is no team", name)
		}
	}
	l.day, l.entries = f.Day, f.Teams
	return nil
}

// Snapshot settles all accounts and returns a function that writes them to the
// ledger, which may be called without the lock of a. It is nil if there is no ledger
// or, unless force, if the last write was less than 30 s ago.
func (a *Accounts) Snapshot(now placement.Instant, wall time.Time, force bool) (write func() error) {
	l := a.ledger
	if l == nil || !force && now-l.written < saveEvery {
		return nil
	}
	l.written = now
	f := ledgerFile{Day: dayOf(wall), Teams: make(map[string]Entry, len(a.list)+len(l.entries))}
	for name, e := range l.entries { // entries of teams without an account in this process stay
		if l.day != f.Day {
			e.Today = 0
		}
		f.Teams[name] = e
	}
	for _, t := range a.list {
		t.Settle(max(now, t.at), wall)
		f.Day = max(f.Day, t.day)
		if t.Entry != (Entry{}) {
			f.Teams[t.Name] = t.Entry
		}
	}
	return func() error {
		data, err := json.MarshalIndent(f, "", "  ")
		if err != nil {
			return err
		}
		return l.save(append(data, '\n'))
	}
}
