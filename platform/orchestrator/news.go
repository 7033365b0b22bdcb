package orchestrator

// pile is news since the last turn, one entry per subject, in the order in which
// the subjects were first heard of: what a turn does with it must not hang on the
// order of a map.
type pile[K comparable, V any] struct {
	at   map[K]int
	list []entry[K, V]
}

type entry[K comparable, V any] struct {
	key K
	val V
}

// put leaves v; newer news of a subject overwrite older ones in their place.
func (p *pile[K, V]) put(k K, v V) {
	if i, ok := p.at[k]; ok {
		p.list[i].val = v
		return
	}
	if p.at == nil {
		p.at = map[K]int{}
	}
	p.at[k] = len(p.list)
	p.list = append(p.list, entry[K, V]{k, v})
}

func (p *pile[K, V]) get(k K) (v V, ok bool) {
	if i, ok := p.at[k]; ok {
		return p.list[i].val, true
	}
	return v, false
}

// clear empties p and keeps its memory, unless a storm has made it large.
func (p *pile[K, V]) clear() {
	if len(p.list) > 1<<12 {
		*p = pile[K, V]{}
		return
	}
	clear(p.at)
	clear(p.list)
	p.list = p.list[:0]
}

// crowd is a set with an order: that in which its members came, but that the last
// takes the place of one that leaves. The same steps give the same order.
type crowd[T comparable] struct {
	at   map[T]int
	list []T
}

func (c *crowd[T]) add(x T) {
	if _, ok := c.at[x]; ok {
		return
	}
	if c.at == nil {
		c.at = map[T]int{}
	}
	c.at[x] = len(c.list)
	c.list = append(c.list, x)
}

func (c *crowd[T]) drop(x T) {
	i, ok := c.at[x]
	if !ok {
		return
	}
	delete(c.at, x)
	last := len(c.list) - 1
	if i != last {
		c.list[i] = c.list[last]
		c.at[c.list[i]] = i
	}
	var none T
	c.list[last] = none
	c.list = c.list[:last]
}

func (c *crowd[T]) has(x T) bool { _, ok := c.at[x]; return ok }

// each calls f on every member. f may drop the one it is called on.
func (c *crowd[T]) each(f func(T)) {
	for i := 0; i < len(c.list); {
		x := c.list[i]
		f(x)
		if i < len(c.list) && c.list[i] == x {
			i++
		}
	}
}
