package orchestrator

// orderedSet is a set in insertion order, except that the last member replaces a
// removed one. The same steps give the same order.
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
