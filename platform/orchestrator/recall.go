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

// recollection is what an earlier life has measured of a function's starts. It
// holds for the recipe it was measured on.
type recollection struct {
	Recipe  uint64       `json:"recipe,string"`
	Samples []recollects `json:"samples"`
}

type recollects struct {
	Node   string                            `json:"node"`
	Tier   functions.Tier                    `json:"tier"`
	Total  time.Duration                     `json:"total"`
	Phases map[functions.Phase]time.Duration `json:"phases,omitempty"`
}

// memory is the file.
type memory struct {
	Version int                     `json:"version"`
	History json.RawMessage         `json:"history"`
	Starts  map[string]recollection `json:"starts"`
}

const (
	memoryVersion = 1
	rememberEvery = 5 * time.Minute
	longestStart  = 24 * time.Hour
)

// OpenForesee makes a look ahead from what is kept in DIR/history.json. A file
// that does not read is set aside as history.json.bad and said so: nothing but
// forecasts is lost with it.
func OpenForesee(dir string, now time.Time, log *slog.Logger) *Foresee {
	path := filepath.Join(dir, "history.json")
	o := &Foresee{History: forecast.New(forecast.Options{}), File: path}
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
func (o *Foresee) read(r io.Reader, now time.Time) error {
	b, err := io.ReadAll(io.LimitReader(r, forecast.MaxFile+1))
	if err != nil {
		return err
	}
	if len(b) > forecast.MaxFile {
		return fmt.Errorf("more than %d MiB", forecast.MaxFile>>20)
	}
	var m memory
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows it")
	}
	if m.Version != memoryVersion {
		return fmt.Errorf("version %d, want %d", m.Version, memoryVersion)
	}
	starts := make(map[functions.Name]recollection, len(m.Starts))
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

// recall gives a function that has come the starts that were measured of it in
// an earlier life.
func (s *Steer) recall(f *fn) {
	if s.seer == nil {
		return
	}
	x, ok := s.seer.recalled[f.Name]
	if !ok {
		return
	}
	delete(s.seer.recalled, f.Name)
	if x.Recipe != f.recipe || len(f.history.samples) > 0 {
		return
	}
	for _, r := range x.Samples {
		f.history.add(sample{node: r.Node, tier: r.Tier, total: r.Total, phases: r.Phases})
	}
}

// remember writes down what was learned, every now and then; with last at once,
// before it returns.
func (s *Steer) remember(last bool) {
	a := s.seer
	if a == nil || a.File == "" {
		return
	}
	s.mu.Lock()
	now := s.now()
	if !last && (now-a.saved < rememberEvery || a.saving) {
		s.mu.Unlock()
		return
	}
	a.saved, a.saving = now, true
	m := s.memory(now)
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
	s.doing.Go(write)
}

// written is a memory that is written down later.
type written struct {
	Version int                     `json:"version"`
	History forecast.Snapshot       `json:"history"`
	Starts  map[string]recollection `json:"starts"`
}

func (s *Steer) memory(now placement.Instant) written {
	w := written{Version: memoryVersion, History: s.seer.History.Snapshot(s.wall(now)), Starts: map[string]recollection{}}
	for _, f := range s.list {
		if f.Gone || len(f.history.samples) == 0 {
			continue
		}
		x := recollection{Recipe: f.recipe}
		for _, h := range f.history.samples {
			if h.deep {
				continue // few, and short of a word for them in the file
			}
			x.Samples = append(x.Samples, recollects{h.node, h.tier, min(max(h.total, 0), longestStart), h.phases})
		}
		w.Starts[f.Name.String()] = x
	}
	return w
}

// write replaces the file: it is the old one or the new one, whole.
func (w written) write(path string) error {
	b, err := json.Marshal(w)
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(b, '\n'), 0o600)
}
