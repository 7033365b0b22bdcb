package orchestrator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/placement"
)

// savedStarts is what an earlier life has measured of a function's starts. It
// holds for the recipe it was measured on.
type savedStarts struct {
	Recipe  uint64       `json:"recipe,string"`
	Samples []savedStart `json:"samples"`
}

type savedStart struct {
	Node   string                            `json:"node"`
	Tier   functions.Tier                    `json:"tier"`
	Total  time.Duration                     `json:"total"`
	Phases map[functions.Phase]time.Duration `json:"phases,omitempty"`
}

// historyFile is the file.
type historyFile struct {
	Version int                    `json:"version"`
	History json.RawMessage        `json:"history"`
	Starts  map[string]savedStarts `json:"starts"`
}

const (
	historyVersion = 1
	saveEvery      = 5 * time.Minute
	longestStart   = 24 * time.Hour
)

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
		err = o.read(f, now)
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

// read takes a file in, whole or not at all.
func (o *Foresight) read(r io.Reader, now time.Time) error {
	b, err := io.ReadAll(io.LimitReader(r, forecast.MaxFile+1))
	if err != nil {
		return err
	}
	if len(b) > forecast.MaxFile {
		return fmt.Errorf("more than %d MiB", forecast.MaxFile>>20)
	}
	var m historyFile
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows it")
	}
	if m.Version != historyVersion {
		return fmt.Errorf("version %d, want %d", m.Version, historyVersion)
	}
	starts := make(map[functions.Name]savedStarts, len(m.Starts))
	for text, x := range m.Starts {
		name, err := functions.ParseName(text, "")
		if err != nil {
			return err
		}
		if len(x.Samples) > keepSamples {
			return fmt.Errorf("%s has %d starts, at most %d", text, len(x.Samples), keepSamples)
		}
		for _, s := range x.Samples {
			if s.Total < 0 || s.Total > longestStart || len(s.Phases) > 32 {
				return fmt.Errorf("%s has a start of %v", text, s.Total)
			}
			for p, d := range s.Phases {
				if d < 0 || d > longestStart {
					return fmt.Errorf("%s has a phase %q of %v", text, p, d)
				}
			}
		}
		starts[name] = x
	}
	if err := o.History.Load(bytes.NewReader(m.History), now); err != nil {
		return err
	}
	o.starts = starts
	return nil
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
	if x.Recipe != f.recipe || len(f.starts.samples) > 0 {
		return
	}
	for _, r := range x.Samples {
		f.starts.add(startSample{node: r.Node, tier: r.Tier, total: r.Total, phases: r.Phases})
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
	m := s.historySnapshot(now)
	s.mu.Unlock()
	write := func() {
		a.writing.Lock()
		defer a.writing.Unlock()
		var err error
		if now >= a.written { // else somebody was faster, with what is newer
			if err = m.write(a.File); err == nil {
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

// historySnapshot is a memory that is written down later.
type historySnapshot struct {
	Version int                    `json:"version"`
	History forecast.Snapshot      `json:"history"`
	Starts  map[string]savedStarts `json:"starts"`
}

func (s *Orchestrator) historySnapshot(now placement.Instant) historySnapshot {
	w := historySnapshot{Version: historyVersion, History: s.forecaster.History.Snapshot(s.wallTime(now)), Starts: map[string]savedStarts{}}
	for _, f := range s.functionList {
		if f.Gone || len(f.starts.samples) == 0 {
			continue
		}
		x := savedStarts{Recipe: f.recipe}
		for _, h := range f.starts.samples {
			if h.fromDeepSleep {
				continue // few, and short of a word for them in the file
			}
			x.Samples = append(x.Samples, savedStart{h.node, h.tier, min(max(h.total, 0), longestStart), h.phases})
		}
		w.Starts[f.Name.String()] = x
	}
	return w
}

// write replaces the file: it is the old one or the new one, whole.
func (w historySnapshot) write(path string) error {
	b, err := json.Marshal(w)
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(b, '\n'), 0o600)
}
