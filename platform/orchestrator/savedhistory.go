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

// OpenForesight makes a look ahead from what is kept in DIR/history.json. A file
// that does not read is set aside as history.json.bad and said so: nothing but
// forecasts is lost with it.
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

// restoreStarts gives a function that has come the starts that were measured of it in
// an earlier life.
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

// saveHistory writes down what was learned, every now and then; with last at once,
// before it returns.
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
		if now >= a.written { // else somebody was faster, with what is newer
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
	s.commands.Go(write)
}

// historyFile copies what is to be saved.
func (s *Orchestrator) historyFile(now placement.Instant) *forecast.File {
	w := forecast.NewFile(s.forecaster.History, s.wallTime(now))
	for _, f := range s.functionList {
		if !f.Gone && f.starts.Len() > 0 {
			w.Starts[f.Name.String()] = f.starts.Save(f.recipe)
		}
	}
	return w
}
