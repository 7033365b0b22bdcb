package orchestrator

// coalescingQueue is news since the last turn, one entry per subject, in the order in which
// the subjects were first heard of: what a turn does with it must not hang on the
// order of a map.
type coalescingQueue[K comparable, V any] struct {
	at   map[K]int
	list []queueEntry[K, V]
}

type queueEntry[K comparable, V any] struct {
	key K
	val V
}

// put leaves v; newer news of a subject overwrite older ones in their place.
func (p *coalescingQueue[K, V]) put(k K, v V) {
	if i, ok := p.at[k]; ok {
		p.list[i].val = v
		return
	}
	if p.at == nil {
		p.at = map[K]int{}
	}
	p.at[k] = len(p.list)
	p.list = append(p.list, queueEntry[K, V]{k, v})
}

func (p *coalescingQueue[K, V]) get(k K) (v V, ok bool) {
	if i, ok := p.at[k]; ok {
		return p.list[i].val, true
	}
	return v, false
}

// clear empties p and keeps its memory, unless a storm has made it large.
func (p *coalescingQueue[K, V]) clear() {
	if len(p.list) > 1<<12 {
		*p = coalescingQueue[K, V]{}
		return
	}
	clear(p.at)
	clear(p.list)
	p.list = p.list[:0]
}

// orderedSet is a set with an order: that in which its members came, but that the last
// takes the place of one that leaves. The same steps give the same order.
type orderedSet[T comparable] struct {
	at   map[T]int
	list []T
}

func (c *orderedSet[T]) add(x T) {
	if _, ok := c.at[x]; ok {
		return
	}
	if c.at == nil {
		c.at = map[T]int{}
	}
	c.at[x] = len(c.list)
	c.list = append(c.list, x)
}

func (c *orderedSet[T]) drop(x T) {
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

func (c *orderedSet[T]) has(x T) bool { _, ok := c.at[x]; return ok }

// each calls f on every member. f may drop the one it is called on.
func (c *orderedSet[T]) each(f func(T)) {
	for i := 0; i < len(c.list); {
		x := c.list[i]
		f(x)
		if i < len(c.list) && c.list[i] == x {
			i++
		}
	}
}
