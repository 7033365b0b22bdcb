package cache

import (
	"container/list"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// maxAnswer bounds the bytes of one answer that is kept.
const maxAnswer = 1 << 20

// overhead is what an answer needs in memory beside its bytes, about.
const overhead = 768

// Metrics makes the series of metrics, which are declared elsewhere.
type Metrics interface {
	Series(metric string, labels ...string) func(float64)
}

// Store holds answers. Its methods may be called concurrently; a nil one is empty and keeps
// nothing.
type Store struct {
	budget  int64
	metrics Metrics
	evicted atomic.Int64

	spellings spellings

	// Changed, which may be nil and is set before use, reports whether a start of the model
	// would load other weights than those that its answers are of, or ones that are not
	// known to be the same.
	Changed func(m *functions.Model, weights string) bool

	mu        sync.Mutex
	used      int64
	byKey     map[[32]byte]*entry
	list      list.List // of *entry, the newest first
	functions map[functions.Name]*function
}

// function is what the store knows of one function. A purge replaces it, so that an answer
// under way then is not kept.
type function struct {
	name     functions.Name
	document any // *functions.Model or *functions.Remote, as last seen
	version  [32]byte
	weights  string // of its READY replicas, as last seen; "" unknown
	entries  map[*entry]struct{}
	count    [2]func(float64) // hits, misses
}

type entry struct {
	key    [32]byte
	of     *function
	answer *answer
	size   int64
	at     time.Time
	ttl    time.Duration
	place  *list.Element // in Store.list
}

// NewStore makes a store of so many bytes; nil, which keeps nothing, where there are none.
// metrics may be nil.
func NewStore(budget int64, metrics Metrics) *Store {
	if budget <= 0 {
		return nil
	}
	return &Store{budget: budget, metrics: metrics, byKey: map[[32]byte]*entry{}, functions: map[functions.Name]*function{}}
}

// documentOf is the file of a function; its address changes where the file may have changed.
func documentOf(f *snapshot.Snapshot) any {
	if f.Remote != nil {
		return f.Remote
	}
	return f.Model
}

// versionOf is a digest of all of a function's file that may change an answer.
func versionOf(f *snapshot.Snapshot) (sum [32]byte, ok bool) {
	var spec any
	switch {
	case f.Remote != nil:
		spec = f.Remote.Spec
	case f.Model != nil:
		spec = f.Model.Spec
	}
	b, err := json.Marshal(spec)
	return sha256.Sum256(b), err == nil && spec != nil
}

// weightsOf identifies the weights of the READY replicas, which may differ; "" unknown.
func weightsOf(f *snapshot.Snapshot) string {
	var all []string
	for i := range f.Replicas {
		if w := f.Replicas[i].Weights; w != "" && !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// function returns what is known of a function. The answers of an earlier version of its
// file, and those of other weights than the next replica will have, are dropped. It is nil
// where the file cannot be read.
func (s *Store) function(f *snapshot.Snapshot) *function {
	s.mu.Lock()
	known := s.refresh(f, true)
	check := known != nil && len(known.entries) > 0 && len(f.Replicas) == 0 && f.Model != nil && s.Changed != nil
	weights := ""
	if check {
		weights = known.weights
	}
	s.mu.Unlock()
	if !check || !s.Changed(f.Model, weights) {
		return known
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.functions[f.Name] == known {
		s.purge(f.Name)
	}
	return s.refresh(f, true)
}

// refresh is function with the lock held; without create it makes none.
func (s *Store) refresh(f *snapshot.Snapshot, create bool) *function {
	document, known := documentOf(f), s.functions[f.Name]
	if known != nil && !create {
		switch w := weightsOf(f); {
		case w == "" || w == known.weights:
		case known.weights == "" && len(known.entries) == 0: // its first replica
			known.weights = w
		default:
			s.purge(f.Name)
			return nil
		}
	}
	if known == nil && !create || known != nil && known.document == document {
		return known
	}
	version, ok := versionOf(f)
	if known != nil {
		if ok && known.version == version {
			known.document = document
			return known
		}
		s.purge(f.Name)
	}
	if !ok || !create {
		return nil
	}
	known = &function{name: f.Name, document: document, version: version, weights: weightsOf(f), entries: map[*entry]struct{}{}}
	public := f.PublicName()
	for i, result := range [...]string{wordExact, wordMiss} {
		known.count[i] = func(float64) {}
		if s.metrics != nil {
			known.count[i] = s.metrics.Series("thaw_answer_cache_requests_total", public.Name, public.Team, result)
		}
	}
	s.functions[f.Name] = known
	return known
}

// Publish drops the answers of functions whose file or weights have changed.
func (s *Store) Publish(f *snapshot.Snapshot) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh(f, false)
}

// Purge drops the answers of a function, and of requests to it that are under way, and
// returns how many were held.
func (s *Store) Purge(name functions.Name) int {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.purge(name)
}

func (s *Store) purge(name functions.Name) int {
	f := s.functions[name]
	if f == nil {
		return 0
	}
	delete(s.functions, name)
	n := len(f.entries)
	for e := range f.entries {
		s.drop(e)
	}
	return n
}

// drop removes an entry; the lock is held.
func (s *Store) drop(e *entry) {
	s.list.Remove(e.place)
	delete(s.byKey, e.key)
	delete(e.of.entries, e)
	s.used -= e.size
}

// get returns the answer under a key and its age. One that is older than the ttl is no
// answer, and one older than its own is dropped.
func (s *Store) get(key [32]byte, now time.Time, ttl time.Duration) (*answer, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byKey[key]
	if e == nil {
		return nil, 0
	}
	age := max(0, now.Sub(e.at))
	if age >= e.ttl {
		s.drop(e)
		return nil, 0
	}
	if age >= ttl {
		return nil, 0
	}
	s.list.MoveToFront(e.place)
	return e.answer, age
}

// put keeps an answer of a function, unless that was purged since. The least recently used
// ones make room.
func (s *Store) put(key [32]byte, f *function, a *answer, now time.Time, ttl time.Duration) bool {
	size := a.size() + overhead
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.functions[f.name] != f || size > s.budget {
		return false
	}
	if old := s.byKey[key]; old != nil {
		s.drop(old)
	}
	e := &entry{key: key, of: f, answer: a, size: size, at: now, ttl: ttl}
	s.byKey[key] = e
	f.entries[e] = struct{}{}
	e.place = s.list.PushFront(e)
	s.used += size
	for s.used > s.budget {
		s.drop(s.list.Back().Value.(*entry))
		s.evicted.Add(1)
	}
	return true
}

func (s *Store) Samples(yield func(metric string, value float64, labels ...string)) {
	if s == nil {
		return
	}
	s.mu.Lock()
	used, n := s.used, len(s.byKey)
	s.mu.Unlock()
	yield("thaw_answer_cache_bytes", float64(used))
	yield("thaw_answer_cache_answers", float64(n))
	yield("thaw_answer_cache_evicted_total", float64(s.evicted.Load()))
}
