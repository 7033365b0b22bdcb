package intents

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

var examples = map[string][]string{
	"billing":  {"where is my invoice", "why was my card charged twice", "I want a refund for this bill", "how can I pay my invoice", "the amount on my bill is wrong", "send me a receipt for my payment"},
	"delivery": {"where is my parcel", "when will my order arrive", "my package has not been delivered", "track my shipment", "the courier did not come with my parcel", "change the delivery address of my order"},
	"login":    {"I forgot my password", "I cannot log in to my account", "reset my password please", "my account is locked", "the login page does not accept my password", "how do I sign in"},
}

func fitExamples() *Classifier {
	var list []Example
	for _, intent := range []string{"login", "billing", "delivery"} {
		for _, text := range examples[intent] {
			list = append(list, Example{text, intent})
		}
	}
	return Fit(list)
}

func TestClassify(t *testing.T) {
	c := fitExamples()
	for text, want := range map[string]string{
		"Where's my INVOICE?!":                         "billing",
		"you charged my card twice":                    "billing",
		"has my parcel been delivered":                 "delivery",
		"when does my package arrive?":                 "delivery",
		"please help, I forgot the password":           "login",
		"I can't log in to the account":                "login",
		"Write a poem about the sea.":                  "",
		"What is the capital of France?":               "",
		"Prove that there are infinitely many primes.": "",
		"":            "",
		"日本の首都はどこですか": "",
	} {
		intent, confidence := c.Classify(text)
		if want != "" && intent != want || want == "" && intent != "" && confidence >= 0.75 {
			t.Errorf("%q with %v, want %q: %.60s", intent, confidence, want, text)
		}
		if confidence < 0 || confidence > 1 {
			t.Errorf("confidence %v", confidence)
		}
	}
}

// TestLongText: a text is read at both ends.
func TestLongText(t *testing.T) {
	c := fitExamples()
	long := strings.Repeat("Überall und nirgends. ", 5000)
	if short, whole := clipMiddle(long), maxRunes+1; len([]rune(short)) != whole {
		t.Errorf("%d runes, want %d", len([]rune(short)), whole)
	}
	if a, _ := c.Classify("I forgot my password and cannot log in"); a != "login" {
		t.Error(a)
	}
	c.Classify(long)
}

// TestDeterministic: the same examples give the same classifier, for many callers at once.
func TestDeterministic(t *testing.T) {
	a, b := fitExamples(), fitExamples()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			text := fmt.Sprintf("where is order %d, and the invoice for it?", i)
			x, p := a.Classify(text)
			y, q := b.Classify(text)
			if x != y || p != q {
				t.Errorf("%q %v, %q %v", x, p, y, q)
			}
		})
	}
	all.Wait()
}

// TestOneIntent: what is not of the only intent has none.
func TestOneIntent(t *testing.T) {
	c := Fit([]Example{{"where is my invoice", "billing"}, {"refund this bill", "billing"}, {"why was my card charged", "billing"}})
	if intent, confidence := c.Classify("where is the invoice"); intent != "billing" || confidence < 0.5 {
		t.Errorf("%q with %v", intent, confidence)
	}
	if intent, confidence := c.Classify("Write a haiku about autumn rain"); intent != "" && confidence >= 0.75 {
		t.Errorf("%q with %v", intent, confidence)
	}
}
