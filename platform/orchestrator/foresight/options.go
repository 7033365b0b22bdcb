package foresight

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/forecast"
)

// Options configure a Forecaster, which owns the value from New on.
type Options struct {
	History    *forecast.History // uses so far; never nil
	StartAhead bool              // start predicted uses ahead; hints are followed in any case

	// Budget is the GPU time that prewarms may take in an hour, for one team; all
	// teams together may take Teams times as much. A replica without GPUs counts as
	// one GPU. 0: Budget is an hour, and Teams 4.
	Budget time.Duration
	Teams  int

	// File is the path of the saved history and start times, see Open; empty:
	// they are not saved.
	File string

	// Next, if not nil, replaces History for the next use of a function after now;
	// zero means never. It is for simulators, which know the future.
	Next func(name functions.Name, now time.Time) time.Time

	starts map[functions.Name]forecast.SavedStarts

	// Prefetch stages the bytes of a model on a disk, or with memory also in host
	// memory. It is called in a goroutine and ends with ctx. nil: hints of these
	// tiers are refused.
	Prefetch func(ctx context.Context, m *functions.Model, memory bool) error
}

// saveEvery is the time between two writes of the history.
const saveEvery = 5 * time.Minute

// Open reads the history in DIR/history.json. A file that does not parse is
// renamed to history.json.bad and logged; only forecasts are lost.
func Open(dir string, now time.Time, log *slog.Logger) *Options {
	path := filepath.Join(dir, "history.json")
	o := &Options{History: forecast.New(), File: path}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return o
	}
	if err == nil {
		o.starts, err = forecast.ReadFile(f, o.History, now)
		f.Close()
	}
	if err != nil {
		o.History, o.starts = forecast.New(), nil
		aside := path + ".bad"
		if moved := os.Rename(path, aside); moved != nil {
			aside = "nowhere: " + moved.Error()
		}
		log.Warn("what was learned of the functions does not read; it is set aside and learned anew", "file", path, "aside", aside, "error", err)
	}
	return o
}
