package rangelimit

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

// LinkFile keeps what was measured of sources for the next process: a download
// that starts with the right number of ranges saves a search as long as 200 MiB take.
type LinkFile struct {
	file string // "" keeps nothing
	now  func() time.Time

	mu     sync.Mutex      // guards all below, and writing the file
	byHost map[string]Link // nil before load
}

// Link is what a source was like at the end of a download.
type Link struct {
	Streams int       `json:"streams"`          // ranges in flight
	First   float64   `json:"first_byte_s"`     // median wait
	Rate    float64   `json:"bytes_per_second"` // of each
	At      time.Time `json:"at"`
}

const (
	// maxLinkAge bounds the age of stats in use; they only start a search.
	maxLinkAge = 24 * time.Hour
	maxLinks   = 100
)

// NewLinkFile returns the file of that name; "" keeps nothing on disk.
func NewLinkFile(file string) *LinkFile { return &LinkFile{file: file, now: time.Now} }

func (l Link) valid() bool {
	return l.Streams >= minRanges && l.Streams <= 1024 && l.First >= 0 && l.First < 3600 && l.Rate >= 0 && l.Rate < 1e12
}

func (f *LinkFile) Get(host string) (Link, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.load()
	p, ok := f.byHost[host]
	age := f.now().Sub(p.At)
	return p, ok && p.valid() && age >= 0 && age < maxLinkAge
}

// Put stores the stats of a host. A failed write costs one search.
func (f *LinkFile) Put(host string, p Link) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.load()
	p.At = f.now().UTC().Truncate(time.Second)
	f.byHost[host] = p
	if len(f.byHost) > maxLinks {
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
func (f *LinkFile) load() {
	if f.byHost != nil {
		return
	}
	if f.file != "" {
		if raw, err := os.ReadFile(f.file); err != nil || len(raw) > 1<<20 || json.Unmarshal(raw, &f.byHost) != nil || len(f.byHost) > maxLinks {
			f.byHost = nil
		}
	}
	if f.byHost == nil {
		f.byHost = make(map[string]Link)
	}
}
