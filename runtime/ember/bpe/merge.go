package bpe

// merge joins the bytes of a word by the ranks of their pairs, the lowest rank
// first and of equal ones the leftmost.
//
// Short words are searched linearly for each merge. Long ones (a client may send
// megabytes without a space) use a heap of candidates, in nearly linear time.
func (t *Tokenizer) merge(w string) []int32 {
	ids := make([]int32, 0, len(w))
	for i := range len(w) {
		if id := t.byteID[w[i]]; id >= 0 {
			ids = append(ids, id)
		}
	}
	if len(ids) > longest {
		return t.mergeLong(ids)
	}
	for len(ids) > 1 {
		at, best, to := -1, int32(0), int32(0)
		for i := range len(ids) - 1 {
			if r, id, ok := t.merges.find(ids[i], ids[i+1]); ok && (at < 0 || r < best) {
				at, best, to = i, r, id
			}
		}
		if at < 0 {
			break
		}
		ids[at] = to
		ids = append(ids[:at+1], ids[at+2:]...)
	}
	return ids
}

// candidate is a pair that could be merged: nodes at and right, as they were.
type candidate struct {
	rank, at, right, id int32
	left, rightID       int32 // the ids when it was found; it is stale if they have changed
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

func (t *Tokenizer) mergeLong(ids []int32) []int32 {
	n := len(ids)
	prev, next := make([]int32, n), make([]int32, n)
	for i := range ids {
		prev[i], next[i] = int32(i)-1, int32(i)+1
	}
	next[n-1] = -1
	var heap []candidate
	push := func(at int32) {
		if at < 0 || next[at] < 0 {
			return
		}
		r := next[at]
		rank, id, ok := t.merges.find(ids[at], ids[r])
		if !ok {
			return
		}
		heap = append(heap, candidate{rank, at, r, id, ids[at], ids[r]})
		for i := len(heap) - 1; i > 0; {
			up := (i - 1) / 2
			if !heap[i].before(heap[up]) {
				break
			}
			heap[i], heap[up] = heap[up], heap[i]
			i = up
		}
	}
	pop := func() candidate {
		top := heap[0]
		last := len(heap) - 1
		heap[0] = heap[last]
		heap = heap[:last]
		for i := 0; ; {
			c := 2*i + 1
			if c >= last {
				break
			}
			if c+1 < last && heap[c+1].before(heap[c]) {
				c++
			}
			if !heap[c].before(heap[i]) {
				break
			}
			heap[i], heap[c] = heap[c], heap[i]
			i = c
		}
		return top
	}
	for i := range n - 1 {
		push(int32(i))
	}
	const dead = -1
	for len(heap) > 0 {
		c := pop()
		if ids[c.at] != c.left || next[c.at] != c.right || ids[c.right] != c.rightID {
			continue
		}
		ids[c.at] = c.id
		ids[c.right] = dead
		next[c.at] = next[c.right]
		if next[c.at] >= 0 {
			prev[next[c.at]] = c.at
		}
		push(prev[c.at])
		push(c.at)
	}
	out := ids[:0]
	for i := int32(0); i >= 0; {
		nx := next[i]
		out = append(out, ids[i]) // never ahead of i
		i = nx
	}
	return out
}
