package category

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	const story = "\nOn Friday Anna Berg flew from Oslo to Lima. She met Paul Ochoa of Acme there.\nThey signed on Sunday."
	for text, want := range map[string]Category{
		"A farmer has 17 sheep and buys 3 more each week. Every sheep eats 2 kg of hay a day. How many kg of hay does he need in the fourth week?":                                 Reasoning,
		"Anna is older than Ben. Ben is older than Carl. Dora is younger than Carl. Which of the following must be true?\n(A) Dora is older than Ben\n(B) Anna is older than Dora": Reasoning,
		"Two trains leave two cities that are 300 km apart at the same time. One travels at 60 km/h, the other at 90 km/h. After how many minutes do they meet?":                   Reasoning,
		"Lea kauft 4 Hefte zu je 3 Euro und zahlt mit 20 Euro. Wie viel Wechselgeld bekommt sie?":                                                                                  Reasoning,
		"小明有12个苹果，给了妹妹5个，还剩几个？":                                                                                                                                                    Reasoning,
		"写一首关于春天的诗":                                                     General,
		"Напиши рассказ о море":                                         General,
		"hello, how are you?":                                           General,
		"Does Prague have an airport?":                                  General,
		"Write a short poem about autumn leaves.":                       General,
		"translate good morning to spanish":                             General,
		"Please write an e-mail that thanks my team for its good work.": General,
		"Summarize the following article." + story:                      General,
		"Extract the dates and the places." + story:                     Extraction,
		"List the people mentioned in this article." + story:            Extraction,
		"Implement a queue with two stacks in Java.":                    Code,
	} {
		shares := Judge([]byte(text))
		if got := shares.Category(); got != want || shares.Complexity() > 0.5 != (want == Reasoning) && want != Extraction && want != Code {
			t.Errorf("%v, want %d: %s", shares, want, text)
		}
	}
	for _, text := range []string{"", "\xff\xfe", strings.Repeat("x", 1<<16), strings.Repeat("1 ", 1<<16), strings.Repeat("?", 1<<16)} {
		sum := 0.0
		for _, share := range Judge([]byte(text)) {
			sum += share
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("shares of %v together: %.20q", sum, text)
		}
	}
}

// TestRead: case makes no difference, all numbers are alike, and the beginning and the end of
// a long text count.
func TestRead(t *testing.T) {
	same := func(a, b string) bool { return *Read([]byte(a)) == *Read([]byte(b)) }
	a, b := Read([]byte("How many apples? 12 or more")), Read([]byte("how MANY Apples? 7,500 or more"))
	if !slices.Equal(a.Features(Body), b.Features(Body)) {
		t.Error("case or numbers make a difference")
	}
	long := strings.Repeat("and ", 10000)
	if same("prove "+long, long) || same(long+"theorem", long) {
		t.Error("the ends of a long text do not count")
	}
	first := Read([]byte("Extract the dates from this.\n" + long)).Features(First)
	if !slices.Equal(first, Read([]byte("Extract the dates from this.\nNone are in this line of text.")).Features(First)) {
		t.Error("the first line is not what is before the second")
	}
}

// TestScripts: in scripts without spaces characters are words, and numbers and questions count as in English.
func TestScripts(t *testing.T) {
	for text, want := range map[string][2]int{ // numbers, characters
		"小明有12个。": {1, 4},
		"x + 3":   {1, 0},
	} {
		c := Read([]byte(text)).counts
		if got := [2]int{c[countNumbers], c[countWide]}; got != [2]int{want[0], want[1]} {
			t.Errorf("%v, want %v: %s", got, want, text)
		}
	}
	if *Read([]byte("苹果。")) == *Read([]byte("苹果香蕉。")) {
		t.Error("a character makes no difference")
	}
}

func BenchmarkJudge(b *testing.B) {
	text := []byte(strings.Repeat("The engine starts when a request comes, and stops when it is idle. ", 61)[:4000])
	b.ReportAllocs()
	for b.Loop() {
		Judge(text)
	}
}
