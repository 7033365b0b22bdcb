package loader

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/loader/durable"
)

// habits are what was found out about links, kept from one process to the next:
// a download that begins with the number of ranges the last one from there ended
// with need not find it again, which costs about as long as 200 MiB take.
type habits struct {
	file string // "" keeps nothing
	now  func() time.Time

	mu   sync.Mutex // guards all below, and writing the file
	read bool
	of   map[string]past
}

// past is what a link was like at the end of a download.
type past struct {
	Streams int       `json:"streams"`          // ranges in flight
	First   float64   `json:"first_byte_s"`     // that they waited, in the middle
	Rate    float64   `json:"bytes_per_second"` // of each
	At      time.Time `json:"at"`
}

const (
	// pastHolds is how long what was found is believed. It is only where a search
	// begins.
	pastHolds = 24 * time.Hour
	maxPasts  = 100
	// pastLeast is how many blocks a download must have brought to tell of its link.
	pastLeast = 16
)

func (p past) sound() bool {
	return p.Streams >= leastStreams && p.Streams <= 1024 && p.First >= 0 && p.First < 3600 && p.Rate >= 0 && p.Rate < 1e12
}

// get is what a link was like lately.
func (h *habits) get(host string) (past, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	p, ok := h.of[host]
	age := h.now().Sub(p.At)
	return p, ok && p.sound() && age >= 0 && age < pastHolds
}

// put notes what a link is like, and writes it down. What cannot be written is
// found again next time.
func (h *habits) put(host string, p past) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.load()
	p.At = h.now().UTC().Truncate(time.Second)
	h.of[host] = p
	if len(h.of) > maxPasts {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(h.of)), func(a, b string) int {
			return cmp.Or(h.of[a].At.Compare(h.of[b].At), cmp.Compare(a, b))
		})
		delete(h.of, oldest)
	}
	if h.file == "" {
		return
	}
	raw, err := json.Marshal(h.of)
	if err != nil {
		return
	}
	durable.WriteFile(h.file, raw, 0o600) // without it the next start measures anew
}

// load reads the file once; mu is held. A file that makes no sense is none.
func (h *habits) load() {
	if h.read {
		return
	}
	h.read = true
	if h.file != "" {
		if raw, err := os.ReadFile(h.file); err != nil || len(raw) > 1<<20 || json.Unmarshal(raw, &h.of) != nil || len(h.of) > maxPasts {
			h.of = nil
		}
	}
	if h.of == nil {
		h.of = make(map[string]past)
	}
}

// note keeps what a download has found out about its link, if it brought enough:
// what is done of gen, less what was here before.
func (l *Loader) note(location string, gen *generation, before int64) {
	if gen.done.Load()-before < pastLeast*l.o.Block {
		return
	}
	if p, ok := gen.link.past(); ok {
		l.habits.put(hostOf(location), p)
	}
}
