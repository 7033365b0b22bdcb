// Package newest has helpers that keep the newest values: Map (one value for each key, in order of
// first put), Ring (the last values), Signal (wakes a consumer once for many sets) and Offer
// (replaces a channel's untaken value); Map and Ring are not locked.
package newest

// Map holds the newest value of each key, in the order in which the keys were first
// put: what a consumer does does not depend on the order of a Go map. The zero value
// is empty and unbounded. It is not safe for concurrent use.
type Map[K comparable, V any] struct {
	// Max bounds the number of keys; a new key beyond it is dropped. 0 means no bound.
	Max int

	at   map[K]int
	list []Entry[K, V]
}

// Entry is one key with its newest value.
type Entry[K comparable, V any] struct {
	Key   K
	Value V
}

// keepCapacity is the largest number of entries whose memory Clear keeps for reuse.
const keepCapacity = 1 << 12

// Put sets the value of k. An earlier value is replaced in its place in the order.
func (m *Map[K, V]) Put(k K, v V) {
	if i, ok := m.at[k]; ok {
		m.list[i].Value = v
		return
	}
	if m.Max > 0 && len(m.list) == m.Max {
		return
	}
	if m.at == nil {
		m.at = map[K]int{}
	}
	m.at[k] = len(m.list)
	m.list = append(m.list, Entry[K, V]{k, v})
}

// Get returns the value of k and whether there is one.
func (m *Map[K, V]) Get(k K) (v V, ok bool) {
	if i, ok := m.at[k]; ok {
		return m.list[i].Value, true
	}
	return v, false
}

// Len is the number of keys.
func (m *Map[K, V]) Len() int { return len(m.list) }

// Entries are the keys with their values, in order. The slice is valid until the
// next Put or Clear.
func (m *Map[K, V]) Entries() []Entry[K, V] { return m.list }

// Values are the values in the order of their keys, in a new slice; nil if there are none.
func (m *Map[K, V]) Values() []V {
	if len(m.list) == 0 {
		return nil
	}
	values := make([]V, len(m.list))
	for i, e := range m.list {
		values[i] = e.Value
	}
	return values
}

// Clear removes all keys. It keeps the memory of a map of usual size.
func (m *Map[K, V]) Clear() {
	if len(m.list) > keepCapacity {
		*m = Map[K, V]{Max: m.Max}
		return
	}
	clear(m.at)
	clear(m.list)
	m.list = m.list[:0]
}

// Signal wakes one consumer. Signals that come before the consumer has taken the
// last one are one. Its methods may be called concurrently.
type Signal chan struct{}

// NewSignal returns a Signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set leaves the signal pending. It never blocks.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Offer puts v into c, a channel with one place, instead of a value that was not taken yet. It
// does not block.
func Offer[T any](c chan T, v T) {
	for {
		select {
		case c <- v:
			return
		default:
		}
		select {
		case <-c: // superseded by v
		default:
		}
	}
}

// Ring holds the newest values up to a bound. The zero value is empty. It is not safe for
// concurrent use.
type Ring[T any] struct {
	list []T
	next int // the oldest in a full ring
}

// Put adds a value. Where bound values are held it replaces the oldest and returns that.
func (r *Ring[T]) Put(v T, bound int) (oldest T, full bool) {
	if full = len(r.list) >= bound; !full {
		r.list = append(r.list, v)
		return oldest, false
	}
	oldest, r.list[r.next] = r.list[r.next], v
	r.next = (r.next + 1) % len(r.list)
	return oldest, true
}

// All yields the values, the newest first.
func (r *Ring[T]) All(yield func(T) bool) {
	for i, n := 0, len(r.list); i < n; i++ {
		if !yield(r.list[(r.next+2*n-1-i)%n]) {
			return
		}
	}
}
