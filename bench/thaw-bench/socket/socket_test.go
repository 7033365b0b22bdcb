package socket

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

func TestPrefixes(t *testing.T) {
	if got := prefixes("where is it"); !slices.Equal(got, []string{"where ", "where is ", "where is it "}) {
		t.Errorf("%q", got)
	}
}

func TestForEach(t *testing.T) {
	var calls atomic.Int32
	broken := errors.New("broken")
	if err := forEach(2, 100, func(i int) error {
		calls.Add(1)
		if i == 3 {
			return broken
		}
		return nil
	}); err != broken || calls.Load() > 99 {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
}

// TestMadeUpIntents: their texts are recognised, the same each time, and a text of another
// kind is not.
func TestMadeUpIntents(t *testing.T) {
	list := makeIntents(5)
	if again := makeIntents(5); !slices.EqualFunc(list, again, func(a, b intent) bool { return a.text == b.text }) {
		t.Error("they are others each time")
	}
	var train []labelled
	check := []labelled{{"Write a poem about the sea.", ""}}
	for _, x := range list {
		for _, text := range x.examples {
			train = append(train, labelled{text, x.name})
		}
		check = append(check, labelled{x.text, x.name})
	}
	if x := checkClassifier("", train, check); x.Right != 1 || x.Confident != 1 || x.Sure != 1 || x.Rejected != 1 || x.Examples != 50 ||
		x.Levels[len(x.Levels)-1].Right == 0 {
		t.Errorf("%+v", x)
	}
	few := drawFew(append(train, train...), 1)
	if len(few) != 5*fewExamples {
		t.Errorf("%d examples are drawn", len(few))
	}
}

// TestGoals: each part adds its goals, and a page has what is missing.
func TestGoals(t *testing.T) {
	r := Result{
		Decisions: []Decision{{Text: shortText, P99: 60e-6}, {Text: "4 KiB", P99: 1}}, Accuracy: []Accuracy{{Right: 0.95, Levels: []Level{{From: nearThreshold, Texts: 4, Right: 3}}}, {Right: 0.7}}, Missing: []string{"a file"},
		Idle:   []Idle{{Server: Thaw, Sockets: 10, Typed: 50 << 10, GoneAway: 10}, {Server: EchoServer}, {Server: Thaw, Sockets: 20, Typed: 30 << 10, GoneAway: 19}, {Server: EchoServer}},
		Typing: []Typing{{Server: Thaw, Median: 60}, {Server: EchoServer, Median: 15}}, Submits: make([]Submit, 3), Cold: &Cold{},
	}
	r.checkGoals()
	met := ""
	for _, g := range r.Goals {
		met += map[bool]string{true: "+", false: "-"}[g.Met]
	}
	if met != "-++--+"+"+-"+"++" {
		t.Errorf("%s %+v", met, r.Goals)
	}
	var b strings.Builder
	for _, p := range r.Tables() {
		if err := p.Table.Text(&b); err != nil {
			t.Error(err)
		}
	}
	if !strings.Contains(b.String(), "4.00") {
		t.Errorf("no ratio: %s", b.String())
	}
}
