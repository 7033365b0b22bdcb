package intents

import (
	"slices"
	"strings"
)

// Typed is what a classifier remembers of a text that is being typed, so that a new word
// costs that of the word. The zero value knows nothing. It is for one goroutine.
type Typed struct {
	by    *Classifier
	text  string // that it knows; it ends at the end of a word
	tail  []rune // the end of text as n-grams see it, a space last
	found []uint16
	sum   []int32 // of the rows of found
}

// ClassifyTyped returns what Classify does, and remembers the text in t.
func (c *Classifier) ClassifyTyped(t *Typed, text string) (intent string, confidence float64) {
	if t == nil || len(text) > maxRunes {
		return c.Classify(text)
	}
	if t.by != c || !strings.HasPrefix(text, t.text) {
		*t = Typed{by: c, tail: append(t.tail[:0], ' '), found: t.found[:0], sum: make([]int32, len(c.bias))}
	}
	x := c.extractors.Get().(*extractor)
	defer c.extractors.Put(x)
	x.runes = append(x.runes[:0], t.tail...)
	x.normalise(text[len(t.text):])
	if x.runes[len(x.runes)-1] != ' ' { // within a word, which may go on: nothing to remember
		return c.Classify(text)
	}
	more := slices.DeleteFunc(x.read(len(t.tail)), func(b uint16) bool {
		_, known := slices.BinarySearch(t.found, b)
		return known
	})
	c.addRows(more, t.sum)
	t.found = append(t.found, more...)
	slices.Sort(t.found)
	t.text, t.tail = text, append(t.tail[:0], x.runes[max(0, len(x.runes)-maxGram+1):]...)
	return c.decide(t.sum, len(t.found))
}
