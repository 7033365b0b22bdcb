package orchestrator

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/placement"
)

// saveEvery is the time between two writes of the history.
const saveEvery = 5 * time.Minute

// OpenForesight reads the history in DIR/history.json. A file that does not parse is
// renamed to history.json.bad and logged; only forecasts are lost.
func OpenForesight(dir string, now time.Time, log *slog.Logger) *Foresight {
	path := filepath.Join(dir, "history.json")
	o := &Foresight{History: forecast.New(forecast.Options{}), File: path}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return o
	}
	if err == nil {
		o.starts, err = forecast.ReadFile(f, o.History, now)
		f.Close()
	}
	if err != nil {
		o.History, o.starts = forecast.New(forecast.Options{}), nil
		aside := path + ".bad"
		if moved := os.Rename(path, aside); moved != nil {
			aside = "nowhere: " + moved.Error()
		}
		log.Warn("what was learned of the functions does not read; it is set aside and learned anew", "file", path, "aside", aside, "error", err)
	}
	return o
}

// restoreStarts adds starts measured by an earlier process to a new function.
func (s *Orchestrator) restoreStarts(f *functionState) {
	if s.forecaster == nil {
		return
	}
	x, ok := s.forecaster.restored[f.Name]
	if !ok {
		return
	}
	delete(s.forecaster.restored, f.Name)
	if x.Recipe == f.recipe && f.starts.Len() == 0 {
		x.Restore(&f.starts)
	}
}

// saveHistory writes the history: every saveEvery in the background, with last at once.
func (s *Orchestrator) saveHistory(last bool) {
	a := s.forecaster
	if a == nil || a.File == "" {
		return
	}
	s.mu.Lock()
	now := s.now()
	if !last && (now-a.saved < saveEvery || a.saving) {
		s.mu.Unlock()
		return
	}
	a.saved, a.saving = now, true
	m := s.historyFile(now)
	s.mu.Unlock()
	write := func() {
		a.writing.Lock()
		defer a.writing.Unlock()
		var err error
		if now >= a.written { // otherwise a newer snapshot is already in the file
			if err = m.Write(a.File); err == nil {
				a.written = now
			}
		}
		if err != nil {
			s.log.Warn("what was learned of the functions is not written down", "file", a.File, "error", err)
		}
		s.mu.Lock()
		a.saving = false
		s.mu.Unlock()
	}
	if last {
		write()
		return
	}
	s.commands.running.Go(write)
}

// historyFile returns a copy of the history and start times for saving.
func (s *Orchestrator) historyFile(now placement.Instant) *forecast.File {
	w := forecast.NewFile(s.forecaster.History, s.wallTime(now))
	for _, f := range s.functionList {
		if !f.Gone && f.starts.Len() > 0 {
			w.Starts[f.Name.String()] = f.starts.Save(f.recipe)
		}
	}
	return w
}
