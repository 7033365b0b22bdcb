package intents

import (
	"fmt"
	"math/rand/v2"
	"slices"
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

// TestAddRows: eight classes at once have the sums that each has alone, whatever the
// weights and the number of classes and rows.
func TestAddRows(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 8 {
		m := newModel(1+random.IntN(40), nil)
		for i := range m.weights {
			m.weights[i] = float32(random.IntN(255) - 127)
		}
		m.weights[0] = 127 // so that the scale is 1
		for i := range m.classes {
			m.weights[int(buckets-1)*m.classes+i] = 127
		}
		var c Classifier
		c.keep(m)
		found := make([]uint16, random.IntN(1500))
		for i := range found {
			if found[i] = buckets - 1; random.IntN(4) == 0 { // mostly the largest
				found[i] = uint16(random.IntN(buckets))
			}
		}
		want, got := make([]int32, m.classes), make([]int32, m.classes)
		want[0], got[0] = 17, 17
		for _, b := range found {
			for k := range want {
				want[k] += int32(m.weights[int(b)*m.classes+k])
			}
		}
		if c.addRows(found, got); !slices.Equal(got, want) {
			t.Fatalf("%d classes, %d rows: %v, want %v", m.classes, len(found), got, want)
		}
	}
}

// TestExtract: buckets are ascending, each once, and nothing of an earlier text.
func TestExtract(t *testing.T) {
	var x extractor
	for _, text := range []string{"where is my invoice", strings.Repeat("all the same ", 100), "", "a", "Überall, und nirgends"} {
		got := slices.Clone(x.extract(text))
		if want := slices.Compact(slices.Sorted(slices.Values(got))); !slices.Equal(got, want) {
			t.Errorf("%q: %v", text, got)
		}
		var fresh extractor
		if want := fresh.extract(text); !slices.Equal(got, want) {
			t.Errorf("%q: %d buckets, %d of a fresh extractor", text, len(got), len(want))
		}
	}
}

// BenchmarkClassify has 150 intents and texts of several lengths.
func BenchmarkClassify(b *testing.B) {
	var list []Example
	for i := range 150 {
		for k := range 4 {
			list = append(list, Example{fmt.Sprintf("say the word %x of kind %d", i*i*7919, k), fmt.Sprint(i)})
		}
	}
	c := Fit(list)
	for _, n := range []int{40, 500, 2000} {
		text := strings.Repeat("please tell me where my parcel of last week is and when it comes, ", 40)[:n]
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				c.Classify(text)
			}
		})
		b.Run(fmt.Sprint(n, "/typed"), func(b *testing.B) {
			var t Typed
			for i := 0; b.Loop(); i = (i + 1) % n {
				for text[i] != ' ' {
					i = (i + 1) % n
				}
				c.ClassifyTyped(&t, text[:i+1])
			}
		})
	}
}
