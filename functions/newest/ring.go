package newest

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
