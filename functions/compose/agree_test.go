package compose

import (
	"strings"
	"testing"
)

// TestNormalForm: which answers are the same, and which only look so.
func TestNormalForm(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"42", " 42.\n", true},
		{"Paris", "**paris**", true},
		{"PARIS!", "Paris", true},
		{`"yes"`, "Yes.", true},
		{"“Ja”", "ja", true},
		{"`x`", "x", true},
		{"new  york", "New\nYork", true},
		{"```\n42\n```", "42", true},
		{`{"a":1,"b":[1,2]}`, "{ \"b\": [1, 2], \"a\": 1.0 }", true},
		{`{"a":"é"}`, `{"a":"\u00e9"}`, true},
		{"42", "-42", false},
		{"5", ".5", false},
		{"1.5", "15", false},
		{"1,000", "1.000", false},
		{"5", "5!", false},
		{"10", "10%", false},
		{"yes", "yes?", false},
		{"aB3x", "Ab3x", false},
		{"getName", "getname", false},
		{"a b", "ab", false},
		{"yes", "no", false},
		{`{"a":[1,2]}`, `{"a":[2,1]}`, false},
		{`{"a":9007199254740993}`, `{"a":9007199254740992}`, false},
		{`{"a":1}`, `{"a":"1"}`, false},
		{`{"a":"Yes"}`, `{"a":"yes"}`, false},
		{`{"a":1,"a":2}`, `{"a":2}`, false},
	} {
		a, exactA := normalForm(c.a)
		b, exactB := normalForm(c.b)
		if (a == b) != c.same || !exactA || !exactB {
			t.Errorf("%q and %q: %q (%v) and %q (%v)", c.a, c.b, a, exactA, b, exactB)
		}
	}
	for _, text := range []string{strings.Repeat("x ", 200), strings.Repeat("x", 900), "{" + strings.Repeat(" ", maxStructured) + "}", "*", "..."} {
		if key, exact := normalForm(text); exact && key != "text *" {
			t.Errorf("%.20q is exact: %q", text, key)
		}
	}
}

// TestMajority: of equal sets the first counts, and a half is no majority.
func TestMajority(t *testing.T) {
	for _, c := range []struct {
		answers string // separated by spaces; - is none
		of      int
		best    int
		agree   int
	}{
		{"a a b", 0, 0, 2}, {"b a a", 0, 1, 2}, {"a b", 0, -1, 1}, {"a a b b", 0, -1, 2}, {"a b b a b", 0, 1, 3},
		{"- a a", 0, 1, 2}, {"a - -", 0, -1, 1}, {"- - -", 0, -1, 0}, {"a a - - -", 5, -1, 2}, {"a a a - -", 5, 0, 3},
	} {
		var outcomes []outcome
		for a := range strings.FieldsSeq(c.answers) {
			outcomes = append(outcomes, outcome{text: a, ended: a != "-"})
		}
		if best, a := majority(outcomes, c.of); best != c.best || a.Agree != c.agree || a.Exact != (best >= 0) {
			t.Errorf("%s of %d: %d, %+v", c.answers, c.of, best, a)
		}
	}
}
