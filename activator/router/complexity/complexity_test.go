package complexity

import (
	"math"
	"strings"
	"testing"
)

func TestScore(t *testing.T) {
	for text, hard := range map[string]bool{
		"A farmer has 17 sheep and buys 3 more each week. Every sheep eats 2 kg of hay a day. How many kg of hay does he need in the fourth week?":                                 true,
		"Anna is older than Ben. Ben is older than Carl. Dora is younger than Carl. Which of the following must be true?\n(A) Dora is older than Ben\n(B) Anna is older than Dora": true,
		"Two trains leave two cities that are 300 km apart at the same time. One travels at 60 km/h, the other at 90 km/h. After how many minutes do they meet?":                   true,
		"All bakers are early risers. No early riser is lazy. If somebody is not lazy, then they are diligent. Ben is a baker or a poet.\nBen is diligent.":                        true,
		"Pick the right answer: which of these melts first in the sun?\nAnswer1: ice Answer2: iron Answer3: glass Answer4: stone":                                                  true,
		"Lea kauft 4 Hefte zu je 3 Euro und zahlt mit 20 Euro. Wie viel Wechselgeld bekommt sie?":                                                                                  true,
		"小明有12个苹果，给了妹妹5个，还剩几个？":                                                                                                                                                    true,
		"รถไฟออกจากสถานี 3 ขบวน ขบวนละ 120 คน ลงไป 45 คน เหลือกี่คน":                                                                                                               true,
		"写一首关于春天的诗":                                                     false,
		"Напиши рассказ о море":                                         false,
		"hello, how are you?":                                           false,
		"Write a short poem about autumn leaves.":                       false,
		"translate good morning to spanish":                             false,
		"Please write an e-mail that thanks my team for its good work.": false,
	} {
		if s := Score([]byte(text)); s > 0.5 != hard || s < 0 || s > 1 {
			t.Errorf("%v: %s", s, text)
		}
	}
	for _, text := range []string{"", "\xff\xfe", strings.Repeat("x", 1<<16), strings.Repeat("1 ", 1<<16)} {
		if s := Score([]byte(text)); math.IsNaN(s) || s < 0 || s > 1 {
			t.Errorf("%v: %.20q", s, text)
		}
	}
}

// TestRead: case makes no difference, all numbers are alike, and the beginning and the end
// of a long text count.
func TestRead(t *testing.T) {
	if *Read("How Many Apples? 12 or three") != *Read("how many apples? 7,500 or 2") {
		t.Error("case or numbers make a difference")
	}
	long := strings.Repeat("and ", 10000)
	if *Read("prove " + long + "theorem") == *Read(long) {
		t.Error("the ends of a long text do not count")
	}
}

// TestScripts: in other scripts letters without spaces between words are words, and numbers, questions and
// operators count as in English.
func TestScripts(t *testing.T) {
	for text, want := range map[string][2]int{ // numbers, question marks
		"小明有12个，还剩５个？": {2, 1},
		"१२ और ৭?":     {3, 1}, // one by one
		"x ≤ 3":        {1, 0},
	} {
		if got := Read(text); [2]int{got.Counts[1], got.Counts[2]} != want {
			t.Errorf("%v, want %v: %s", got.Counts, want, text)
		}
	}
	if *Read("苹果。") == *Read("苹果香蕉。") || Read("a ≤ b").Counts[3] != 1 {
		t.Error("a character or an operator makes no difference")
	}
}

// TestChoices: the marks of choices count, however they are written.
func TestChoices(t *testing.T) {
	for text, want := range map[string]int{
		"Which?\nA. yes\nB. no":          2,
		"Which?\nA) yes\nB) no":          2,
		"Which? (A) yes (B) no":          2,
		"Which? (1) yes (2) no (3) both": 3,
		"Answer1: yes Answer2: no":       2,
		"It has 12: six and six (or 7).": 0,
	} {
		if got := Read(text).Counts[5]; got != want {
			t.Errorf("%d, want %d: %s", got, want, text)
		}
	}
}

// TestEncode: a score by encoded weights is that of the weights.
func TestEncode(t *testing.T) {
	weights := make([]float64, Features)
	text := Read("prove the theorem")
	sum := 0.25
	text.Each(func(feature int, value float64) {
		weights[feature] = 0.5
		sum += 0.5 * value
	})
	if got, want := scoreBy(text, Encode(weights, 0.25)), 1/(1+math.Exp(-sum)); math.Abs(got-want) > 0.001 {
		t.Errorf("%v, want %v", got, want)
	}
}

func BenchmarkScore(b *testing.B) {
	text := []byte(strings.Repeat("The engine starts when a request comes, and stops when it is idle. ", 61)[:4000])
	b.ReportAllocs()
	for b.Loop() {
		Score(text)
	}
}
