package eviction

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

const gib = functions.Bytes(1 << 30)

func TestParse(t *testing.T) {
	for _, name := range policyNames {
		e, err := Parse(name)
		if err != nil || e.String() != name {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
	if e, err := Parse(""); e != LRU || err != nil {
		t.Error("the default is lru:", e, err)
	}
	for _, bad := range []string{"LRU", "fifo", "next_use", strings.Repeat("x", 200)} {
		if _, err := Parse(bad); err == nil || !strings.Contains(err.Error(), "lru, lfu, gdsf, next-use") || len(err.Error()) > 120 {
			t.Errorf("%.10s: %v", bad, err)
		}
	}
	if s := Policy(77).String(); s != "eviction(77)" {
		t.Error(s)
	}
}

// TestScore: which of two that differ in one field is evicted first, by policy.
func TestScore(t *testing.T) {
	const now = 100 * time.Hour
	base := Kept{Used: now - time.Minute, Uses: 5, UsesAt: now - time.Minute, Next: now + time.Hour, WayBack: 10 * time.Second,
		Bytes: 10 * gib}
	with := func(edit func(k *Kept)) Kept { k := base; edit(&k); return k }
	for _, c := range []struct {
		what   string
		first  Kept // evicted before base under the policies in under
		under  string
		others string // policies that evict base first
	}{
		{"used longer ago", with(func(k *Kept) { k.Used -= time.Hour }), "lru", ""},
		{"used less often", with(func(k *Kept) { k.Uses = 3 }), "lfu gdsf", ""},
		{"used as often, but long ago", with(func(k *Kept) { k.UsesAt -= 10 * time.Hour }), "lfu gdsf", ""},
		{"sooner back", with(func(k *Kept) { k.WayBack = time.Second }), "gdsf next-use", ""},
		{"as costly, and larger", with(func(k *Kept) { k.Bytes *= 2 }), "gdsf next-use", ""},
		{"larger, and as much longer back", with(func(k *Kept) { k.Bytes *= 2; k.WayBack *= 2 }), "", ""},
		{"needed later", with(func(k *Kept) { k.Next += 5 * time.Hour }), "next-use", ""},
		{"overdue for long", with(func(k *Kept) { k.Next = now - 20*time.Hour }), "next-use", ""},
		{"unknown next use, used once", with(func(k *Kept) { k.Next, k.Uses = 0, 1 }), "lfu gdsf next-use", ""},
		{"older but twice as popular", with(func(k *Kept) { k.Used -= time.Hour; k.Uses *= 2 }), "lru", "lfu gdsf"},
		{"less popular but twelve times as long back", with(func(k *Kept) { k.Uses /= 3; k.WayBack *= 12 }), "lfu", "gdsf next-use"},
	} {
		for e := range Policy(len(policyNames)) {
			a, _ := e.Score(c.first, now)
			b, _ := e.Score(base, now)
			switch name := e.String(); {
			case strings.Contains(c.under, name) && a >= b:
				t.Errorf("%s: under %s it stays (%v, %v)", c.what, name, a, b)
			case strings.Contains(c.others, name) && a <= b:
				t.Errorf("%s: under %s it goes (%v, %v)", c.what, name, a, b)
			case !strings.Contains(c.under+c.others, name) && math.Abs(a/b-1) > 1e-9:
				t.Errorf("%s: makes a difference to %s (%v, %v)", c.what, name, a, b)
			}
		}
	}
	// Without history every policy evicts the least recently used first.
	for e := range Policy(len(policyNames)) {
		a, _ := e.Score(Kept{Used: now - 9*time.Hour, WayBack: time.Second, Bytes: gib}, now)
		b, _ := e.Score(Kept{Used: now - time.Minute, WayBack: time.Second, Bytes: gib}, now)
		if !(a < b) || math.IsNaN(a) || math.IsInf(a, 0) {
			t.Errorf("%v without history: %v, %v", e, a, b)
		}
		if s, _ := e.Score(Kept{}, 1); math.IsNaN(s) || math.IsInf(s, 0) {
			t.Errorf("%v of nothing: %v", e, s)
		}
	}
}

// TestScoreHolds: a score is constant until the returned moment, and then differs (or
// returns a new moment).
func TestScoreHolds(t *testing.T) {
	const born = 50 * time.Hour
	for _, e := range []Policy{LRU, LFU, GDSF, NextUse, Future} {
		k := Kept{Used: born, Uses: 3, UsesAt: born, Next: born + 7*time.Hour, WayBack: 9 * time.Second, Bytes: 3 * gib}
		steps := 0
		for now := time.Duration(born); now < born+60*time.Hour; {
			s, until := e.Score(k, now)
			if until == 0 {
				for _, d := range []time.Duration{1, time.Hour, 1000 * time.Hour} {
					if x, u := e.Score(k, now+d); x != s || u != 0 {
						t.Fatalf("%v: at %v it is for good, and %v later another", e, now, d)
					}
				}
				break
			}
			if until <= now {
				t.Fatalf("%v: at %v it holds until %v", e, now, until)
			}
			if x, u := e.Score(k, until-1); x != s || u != until {
				t.Fatalf("%v: %v at %v holds until %v, and is %v (until %v) just before", e, s, now, until, x, u)
			}
			if _, u := e.Score(k, until); u == until {
				t.Fatalf("%v: at %v it changes at %v", e, until, u)
			}
			now = until
			steps++
		}
		if steps > 500 {
			t.Errorf("%v: %d changes in 60 hours", e, steps)
		}
	}
}
