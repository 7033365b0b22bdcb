package functions

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxNearest bounds how long a word Nearest looks at: it compares every
// character with every other.
const maxNearest = 64

// Nearest are the at most n names of from that are most like word, the likest
// first; empty when none is near enough to be what was meant.
func Nearest(word string, from []string, n int) []string {
	if len(word) > maxNearest {
		return nil
	}
	type candidate struct {
		name     string
		distance int
		begins   int // 0 if word begins the name
	}
	var nearest []candidate
	low := strings.ToLower(word)
	for _, name := range from {
		if len(name) > maxNearest {
			continue
		}
		c := candidate{name, Distance(low, strings.ToLower(name), maxNearest), 1}
		if len(low) >= 2 && strings.HasPrefix(strings.ToLower(name), low) {
			c.begins = 0
			if len(low) >= 4 {
				c.distance = min(c.distance, 1) // --temp is --temperature before --help
			}
		}
		if c.distance <= 1+min(len(word), len(name))/3 || c.begins == 0 {
			nearest = append(nearest, c)
		}
	}
	slices.SortFunc(nearest, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.begins, b.begins), cmp.Compare(a.name, b.name))
	})
	var names []string
	for _, c := range nearest[:min(n, len(nearest))] {
		names = append(names, c.name)
	}
	return names
}

// DidYouMean is a hint with the at most n names nearest to word; "" where none is near.
func DidYouMean(word string, names []string, n int) string {
	if near := Nearest(word, names, n); len(near) > 0 {
		return "did you mean " + strings.Join(near, ", ") + "?"
	}
	return ""
}

// UnknownWord is the error of a word that is none of the choices, which are a noun each.
func UnknownWord(word, noun string, choices []string) error {
	hint := DidYouMean(word, choices, 1)
	if hint != "" {
		hint = "; " + hint
	}
	return fmt.Errorf("%q is no %s%s (%s)", Clip(word), noun, hint, strings.Join(choices, ", "))
}

// Distance is how many letters must be added, dropped, changed or swapped with their
// neighbour to make b of a; more than limit where it is more, or a word is longer than 64 bytes.
func Distance(a, b string, limit int) int {
	if max(len(a), len(b)) > maxNearest || max(len(a)-len(b), len(b)-len(a)) > limit {
		return limit + 1
	}
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	var rows [3][maxNearest + 1]int
	before, prev, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		from, to := max(1, i-limit), min(len(b), i+limit) // beyond these it is more than limit
		row[from-1] = i - from + 1
		for j := from; j <= to; j++ {
			change := prev[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(prev[j]+1, row[j-1]+1, change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		if slices.Min(row[from-1:to+1]) > limit {
			return limit + 1
		}
		if to < len(b) {
			row[to+1] = limit + 1
		}
		before, prev, row = prev, row, before
	}
	return prev[len(b)]
}
