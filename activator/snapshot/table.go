package snapshot

import (
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/thaw-dev/thaw/functions"
)

// Entry is one function's place in the table, stable while the function exists. Data
// belongs to the caller of NewTable.
type Entry[S any] struct {
	Name functions.Name
	Data S

	snapshot   atomic.Pointer[Snapshot]
	removed    atomic.Bool
	letterMask uint64 // set of the letters of the name, for Nearest
}

// Snapshot is the newest snapshot. It is never nil.
func (e *Entry[S]) Snapshot() *Snapshot { return e.snapshot.Load() }

// Removed reports whether the function has been removed.
func (e *Entry[S]) Removed() bool { return e.removed.Load() }

// Table holds all functions. Readers take no lock.
type Table[S any] struct {
	mu    sync.Mutex // serialises writers
	fresh func(*Entry[S])
	index atomic.Pointer[index[S]]
}

type index[S any] struct {
	byName map[functions.Name]*Entry[S]
	byTeam map[string][]*Entry[S] // sorted by name
	all    []*Entry[S]            // sorted by team and name
}

// NewTable returns an empty table. fresh is called once on every new entry, after its first
// snapshot is set and before a reader can find it.
func NewTable[S any](fresh func(*Entry[S])) *Table[S] {
	t := &Table[S]{fresh: fresh}
	t.index.Store(&index[S]{})
	return t
}

// Put stores snapshots and calls each on every entry with its previous snapshot, nil for a
// new one. Calls of Put and Remove are serialised, so
// each sees the changes of one function in order.
func (t *Table[S]) Put(each func(e *Entry[S], before *Snapshot), fs ...Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.index.Load()
	added := map[functions.Name]*Entry[S]{}
	for _, f := range fs { // f is a copy: the caller may reuse its slice
		if old.byName[f.Name] == nil && added[f.Name] == nil {
			e := &Entry[S]{Name: f.Name, letterMask: letterSet(f.Name.Name)}
			e.snapshot.Store(&f)
			t.fresh(e)
			added[f.Name] = e
		}
	}
	if len(added) > 0 {
		t.index.Store(buildIndex(slices.AppendSeq(slices.Clone(old.all), maps.Values(added))))
	}
	for _, f := range fs {
		e := t.index.Load().byName[f.Name]
		before := e.snapshot.Swap(&f)
		if added[f.Name] != nil {
			before = nil
			delete(added, f.Name)
		}
		each(e, before)
	}
}

// Remove removes functions and calls each on those that existed.
func (t *Table[S]) Remove(each func(e *Entry[S]), names ...functions.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.index.Load()
	var dropped []*Entry[S]
	for _, n := range names {
		if e, ok := old.byName[n]; ok && !e.removed.Swap(true) {
			dropped = append(dropped, e)
		}
	}
	if len(dropped) == 0 {
		return
	}
	t.index.Store(buildIndex(slices.DeleteFunc(slices.Clone(old.all), (*Entry[S]).Removed)))
	for _, e := range dropped {
		each(e)
	}
}

func buildIndex[S any](all []*Entry[S]) *index[S] {
	slices.SortFunc(all, func(a, b *Entry[S]) int { return a.Name.Compare(b.Name) })
	x := &index[S]{byName: make(map[functions.Name]*Entry[S], len(all)), byTeam: map[string][]*Entry[S]{}, all: all}
	for i, e := range all {
		x.byName[e.Name] = e
		if i == 0 || all[i-1].Name.Team != e.Name.Team {
			j := i
			for j < len(all) && all[j].Name.Team == e.Name.Team {
				j++
			}
			x.byTeam[e.Name.Team] = all[i:j:j]
		}
	}
	return x
}

// Lookup finds a function by its name without an adapter; nil if there is none.
func (t *Table[S]) Lookup(name functions.Name) *Entry[S] { return t.index.Load().byName[name] }

// All functions, by team and name. The slice must not be changed.
func (t *Table[S]) All() []*Entry[S] { return t.index.Load().all }

// Team is a team's functions by name. The slice must not be changed.
func (t *Table[S]) Team(team string) []*Entry[S] { return t.index.Load().byTeam[team] }

// Nearest returns at most n names of the team that look like name, nearest first:
// those of functions that are not hidden, and of also. It compares sets of letters
// first, so ten thousand names cost microseconds: unknown names come from outside.
func (t *Table[S]) Nearest(team, name string, n int, also ...string) []string {
	const maxDistance = 3
	if len(name) > 63 {
		return nil
	}
	type match struct {
		name string
		d    int
	}
	var found []match
	want := letterSet(name)
	look := func(candidate string, mask uint64) {
		begins := strings.HasPrefix(candidate, name)
		d := len(candidate) - len(name) // if this begins with name
		if d > maxDistance && !begins || d < -maxDistance {
			return
		}
		if !begins || name == "" {
			if bits.OnesCount64(want^mask) > 2*maxDistance {
				return
			}
			if d = functions.Distance(name, candidate, maxDistance); d > maxDistance || d >= len(name) {
				return
			}
		}
		found = append(found, match{candidate, d})
	}
	const maxCandidates = 64
	for _, candidate := range also {
		if look(candidate, letterSet(candidate)); len(found) > maxCandidates {
			break
		}
	}
	for _, e := range t.Team(team) {
		if len(found) > maxCandidates {
			break
		}
		if !e.Snapshot().Hidden {
			look(e.Name.Name, e.letterMask)
		}
	}
	slices.SortStableFunc(found, func(a, b match) int { return a.d - b.d })
	return functions.ConvertAll(found[:min(n, len(found))], func(m match) string { return m.name })
}

func letterSet(s string) (m uint64) {
	for i := 0; i < len(s); i++ {
		m |= 1 << (s[i] & 63)
	}
	return m
}
