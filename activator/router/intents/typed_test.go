package intents

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestTyped: at each prefix of a text a classifier that remembers decides as one that reads
// all, also where the text changes in the middle, and for several classifiers in turn.
func TestTyped(t *testing.T) {
	c, other := fitExamples(), Fit([]Example{{"where is my invoice", "billing"}, {"track my parcel", "delivery"}})
	var typed Typed
	check := func(by *Classifier, text string) {
		t.Helper()
		intent, confidence := by.ClassifyTyped(&typed, text)
		if want, p := by.Classify(text); intent != want || confidence != p {
			t.Errorf("%.60q: %q %v, want %q %v", text, intent, confidence, want, p)
		}
	}
	for _, text := range []string{
		"Where is my parcel, and where is the invoice for my parcel?  It's late!", "Where is my other parcel", "", "...", " a  b ", "Ünïcode  wörds – und Zahlen 1234 56",
		"日本の首都はどこですか。 where", "word\xff broken", strings.Repeat("all the same ", 300), "where is my \nparcel",
	} {
		for i := range len(text) + 1 {
			if utf8.RuneStart((text + " ")[i]) && (i < 100 || i > len(text)-10) {
				check(c, text[:i])
			}
		}
		for i := range text { // at the ends of words only, as sockets decide
			if text[i] == ' ' {
				check(c, text[:i+1])
			}
		}
	}
	for range 2 {
		check(c, "where is my invoice ")
		check(other, "where is my invoice ")
		check(other, "where is my invoice of ")
	}
	if typed.text != "where is my invoice of " || len(typed.tail) != maxGram-1 {
		t.Errorf("%q %q", typed.text, string(typed.tail))
	}
}
