package forecast

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/durable"
)

const (
	fileFormat   = 1
	longestStart = 24 * time.Hour
)

// SavedStarts are the measured starts of one function. They are valid only for the
// recipe that they were measured with.
type SavedStarts struct {
	Recipe  uint64       `json:"recipe,string"`
	Samples []savedStart `json:"samples"`
}

type savedStart struct {
	Node   string                            `json:"node"`
	Tier   functions.Tier                    `json:"tier"`
	Total  time.Duration                     `json:"total"`
	Phases map[functions.Phase]time.Duration `json:"phases,omitempty"`
}

// Save returns the samples in the form of a file.
func (t *StartTimes) Save(recipe uint64) SavedStarts {
	x := SavedStarts{Recipe: recipe}
	for _, s := range t.samples {
		if s.FromDeepSleep {
			continue // rare, and the file has no field for it
		}
		x.Samples = append(x.Samples, savedStart{s.Node, s.Tier, min(max(s.Total, 0), longestStart), s.Phases})
	}
	return x
}

func (s SavedStarts) Restore(h *StartTimes) {
	for _, sample := range s.Samples {
		h.Add(StartSample{Node: sample.Node, Tier: sample.Tier, Total: sample.Total, Phases: sample.Phases})
	}
}

// ReadFile reads a file written by File.Write: the history into h, and returns the
// starts by function. On an error h is unchanged.
func ReadFile(r io.Reader, h *History, now time.Time) (map[functions.Name]SavedStarts, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > MaxFile {
		return nil, fmt.Errorf("more than %d MiB", MaxFile>>20)
	}
	var m File
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows it")
	}
	if m.Version != fileFormat {
		return nil, fmt.Errorf("version %d, want %d", m.Version, fileFormat)
	}
	starts := make(map[functions.Name]SavedStarts, len(m.Starts))
	for text, x := range m.Starts {
		name, err := functions.ParseName(text, "")
		if err != nil {
			return nil, err
		}
		if len(x.Samples) > keepSamples {
			return nil, fmt.Errorf("%s has %d starts, at most %d", text, len(x.Samples), keepSamples)
		}
		for _, s := range x.Samples {
			if s.Total < 0 || s.Total > longestStart || len(s.Phases) > 32 {
				return nil, fmt.Errorf("%s has a start of %v", text, s.Total)
			}
			for p, d := range s.Phases {
				if d < 0 || d > longestStart {
					return nil, fmt.Errorf("%s has a phase %q of %v", text, p, d)
				}
			}
		}
		starts[name] = x
	}
	if err := h.load(m.History, now); err != nil {
		return nil, err
	}
	return starts, nil
}

// File is the stored form of the history and the measured starts of all functions.
type File struct {
	Version int                    `json:"version"`
	History Snapshot               `json:"history"`
	Starts  map[string]SavedStarts `json:"starts"`
}

// NewFile returns a file with a snapshot of h and no starts.
func NewFile(h *History, now time.Time) *File {
	return &File{Version: fileFormat, History: h.Snapshot(now), Starts: map[string]SavedStarts{}}
}

// Write replaces the file at path atomically.
func (f *File) Write(path string) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(b, '\n'), 0o600)
}
