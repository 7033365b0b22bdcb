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

// linkStatsFile keeps what was measured of sources for the next process: a download
// that starts with the right number of ranges saves a search as long as 200 MiB take.
type linkStatsFile struct {
	file string // "" keeps nothing
	now  func() time.Time

	mu     sync.Mutex // guards all below, and writing the file
	loaded bool
	byHost map[string]linkStats
}

// linkStats is what a source was like at the end of a download.
type linkStats struct {
	Streams int       `json:"streams"`          // ranges in flight
	First   float64   `json:"first_byte_s"`     // median wait
	Rate    float64   `json:"bytes_per_second"` // of each
	At      time.Time `json:"at"`
}

const (
	// linkStatsMaxAge bounds the age of stats in use; they only start a search.
	linkStatsMaxAge = 24 * time.Hour
	maxLinkStats    = 100
	// linkStatsMinBlocks is how many blocks a download must have brought to be
	// measured.
	linkStatsMinBlocks = 16
)

func (s linkStats) valid() bool {
	return s.Streams >= minRanges && s.Streams <= 1024 && s.First >= 0 && s.First < 3600 && s.Rate >= 0 && s.Rate < 1e12
}

// get returns the recent stats of a host.
func (f *linkStatsFile) get(host string) (linkStats, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.load()
	p, ok := f.byHost[host]
	age := f.now().Sub(p.At)
	return p, ok && p.valid() && age >= 0 && age < linkStatsMaxAge
}

// put stores the stats of a host. A failed write costs one search.
func (f *linkStatsFile) put(host string, p linkStats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.load()
	p.At = f.now().UTC().Truncate(time.Second)
	f.byHost[host] = p
	if len(f.byHost) > maxLinkStats {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(f.byHost)), func(a, b string) int {
			return cmp.Or(f.byHost[a].At.Compare(f.byHost[b].At), cmp.Compare(a, b))
		})
		delete(f.byHost, oldest)
	}
	if f.file == "" {
		return
	}
	raw, err := json.Marshal(f.byHost)
	if err != nil {
		return
	}
	durable.WriteFile(f.file, raw, 0o600) // without it the next start measures anew
}

// load reads the file once; mu is held. An unreadable file counts as empty.
func (f *linkStatsFile) load() {
	if f.loaded {
		return
	}
	f.loaded = true
	if f.file != "" {
		if raw, err := os.ReadFile(f.file); err != nil || len(raw) > 1<<20 || json.Unmarshal(raw, &f.byHost) != nil || len(f.byHost) > maxLinkStats {
			f.byHost = nil
		}
	}
	if f.byHost == nil {
		f.byHost = make(map[string]linkStats)
	}
}

// saveLinkStats stores what a download measured of its source, if it brought enough:
// done of plan, less the bytes that were here before.
func (l *Loader) saveLinkStats(location string, plan *stagingPlan, before int64) {
	if plan.done.Load()-before < linkStatsMinBlocks*l.o.Block {
		return
	}
	if p, ok := plan.limiter.stats(); ok {
		l.linkStats.put(sourceHost(location), p)
	}
}
