package forecast

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

const min1 = time.Minute

// use records a use of one second.
func use(h *History, name functions.Name, t time.Time) {
	h.Begin(name, t)
	h.End(name, t.Add(time.Second))
}

func TestNextUseOfRhythms(t *testing.T) {
	f := named(1)
	for _, c := range []struct {
		what  string
		gaps  []time.Duration // repeated
		age   time.Duration
		least time.Duration
		most  time.Duration
	}{
		{"every ten minutes, just used", []time.Duration{10 * min1}, 0, 9 * min1, 13 * min1},
		{"every ten minutes, nine ago", []time.Duration{10 * min1}, 9 * min1, 30 * time.Second, 3 * min1},
		{"every ten minutes, twenty ago", []time.Duration{10 * min1}, 20 * min1, 30 * min1, 24 * time.Hour},
		{"twice and then not for a day, within it", []time.Duration{2 * min1, 24 * time.Hour}, min1, min1, 6 * min1},
		{"twice and then not for a day, after it", []time.Duration{2 * min1, 24 * time.Hour}, 5 * min1, 5 * time.Hour, 30 * time.Hour},
		{"every five seconds", []time.Duration{5 * time.Second}, 0, time.Second, 2 * min1},
	} {
		h := New()
		now := epoch
		for i := range 60 {
			h.Begin(f, now)
			h.End(f, now)
			now = now.Add(c.gaps[i%len(c.gaps)])
		}
		// The last gap begins now.
		h.Begin(f, now)
		h.End(f, now)
		next, sure := h.NextUse(f, now.Add(c.age))
		if wait := next.Sub(now.Add(c.age)); wait < c.least || wait > c.most {
			t.Errorf("%s: next use in %v (sure %.2f), want between %v and %v", c.what, wait, sure, c.least, c.most)
		}
	}
}

func TestNothingKnown(t *testing.T) {
	h := New()
	h.max = 1
	f := named(1)
	if at, sure := h.NextUse(f, epoch); !at.IsZero() || sure != 0 {
		t.Errorf("one never used has a next use: %v %v", at, sure)
	}
	if _, ok := h.KeepFor(f, WorthOf(standard, 0, true)); ok {
		t.Error("one never used has a keep-alive")
	}
	if h.Uses(f, epoch) != 0 || h.Follows(f) != nil || h.Windows(f, WorthOf(standard, 0, true)) != nil {
		t.Error("one never used has a past")
	}
	h.End(f, epoch) // an end without a begin
	if h.Len() != 0 {
		t.Error("an end made a past")
	}
	h.Begin(f, epoch)
	if at, sure := h.NextUse(f, epoch.Add(min1)); !at.Equal(epoch.Add(min1)) || sure != 1 {
		t.Errorf("one in use is used %v, sure %v", at, sure)
	}
	h.Begin(named(2), epoch)
	if h.Len() != 1 || h.Uses(named(2), epoch) != 0 {
		t.Error("more are known than are allowed")
	}
	h.End(f, epoch.Add(-min1)) // a clock that was set back
	h.Begin(f, epoch.Add(-time.Hour))
	if h.functions[f].idle.total != 0 {
		t.Error("a clock that was set back has taught something")
	}
	h.Forget(f)
	h.Forget(f)
	if h.Len() != 0 {
		t.Error("a function was not forgotten")
	}
}

func TestKeepAliveFollowsIdleTimes(t *testing.T) {
	f := named(1)
	for _, c := range []struct {
		gap         time.Duration
		least, most time.Duration // of the keep-alive, without starts ahead
		ahead       bool          // a later window covers the gap
	}{
		{2 * min1, 2 * min1, 20 * min1, false},
		{15 * min1, 15 * min1, 25 * min1, true},
		{3 * time.Hour, 0, 20 * min1, true},
	} {
		h := New()
		for i := range 40 {
			use(h, f, epoch.Add(time.Duration(i)*(c.gap+time.Second)))
		}
		w := WorthOf(standard, min1, false)
		keep, ok := h.KeepFor(f, w)
		if !ok || keep < c.least || keep > c.most {
			t.Errorf("used every %v: kept for %v (%v), want between %v and %v", c.gap, keep, ok, c.least, c.most)
		}
		w.Ahead = true
		ws := h.Windows(f, w)
		covered := slices.ContainsFunc(ws[1:], func(x Window) bool { return x.From < c.gap && c.gap < x.To })
		if covered != c.ahead {
			t.Errorf("used every %v: windows %v, a later one covers it %v, want %v", c.gap, ws, covered, c.ahead)
		}
	}
}

// ahead collects the starts ahead, and their times, as the clock goes from from to to.
func ahead(h *History, from, to time.Time, w Worth) (out []Foreseen, when []time.Time) {
	for now := from; !now.After(to); now = now.Add(time.Second) {
		h.Ahead(now, func(functions.Name) (Worth, bool) { return w, true }, func(f Foreseen) { out, when = append(out, f), append(when, now) })
	}
	return out, when
}

func TestAheadOfARhythm(t *testing.T) {
	h := New()
	f, now := named(1), epoch
	w := WorthOf(standard, 30*time.Second, true)
	for range 20 {
		use(h, f, now)
		now = now.Add(2 * time.Hour)
	}
	use(h, f, now)
	got, when := ahead(h, now.Add(time.Second), now.Add(3*time.Hour), w)
	if len(got) != 1 || got[0].Name != f || got[0].Why != "rhythm" {
		t.Fatalf("foreseen %v, want the next use, once", got)
	}
	due := now.Add(2 * time.Hour)
	if d := due.Sub(when[0]); d < w.Start || d > 12*min1 || !got[0].Until.After(due) {
		t.Errorf("started %v ahead, held until %v after", d, got[0].Until.Sub(due))
	}
	// A use before that cancels it.
	use(h, f, now.Add(3*time.Hour))
	use(h, f, now.Add(3*time.Hour+min1))
	h.Begin(f, now.Add(4*time.Hour))
	if got, _ := ahead(h, now.Add(5*time.Hour), now.Add(5*time.Hour+min1), w); len(got) != 0 {
		t.Errorf("foreseen %v though it is in use", got)
	}
}

func TestAheadOfTheMorning(t *testing.T) {
	h := New()
	f := named(1)
	w := WorthOf(standard, min1, true)
	r := rand.New(rand.NewPCG(1, 1))
	for d := range 8 { // each day some uses from about nine on, not periodic
		for range 5 {
			use(h, f, at(d*day+9*60+r.IntN(14)))
		}
	}
	got, when := ahead(h, at(7*day+10*60), at(8*day+9*60), w)
	i := slices.IndexFunc(got, func(x Foreseen) bool { return x.Why == "daily" })
	if i < 0 || !when[i].Equal(at(8*day+9*60-1)) || got[i].Until.Before(at(8*day+9*60)) {
		t.Fatalf("foreseen %v at %v, want one a minute before nine", got, when)
	}
	next, _ := h.NextUse(f, at(8*day+8*60+50))
	if wait := next.Sub(at(8*day + 8*60 + 50)); wait > time.Hour {
		t.Errorf("ten minutes before nine the next use is %v away", wait)
	}
}

func TestFollowers(t *testing.T) {
	h := New()
	one, two, other := named(1), named(2), functions.Name{Team: "u", Name: "x"}
	r := rand.New(rand.NewPCG(2, 1))
	now := epoch
	for range 12 { // two is always used a minute after one; the pair is not periodic
		now = now.Add(time.Duration(60+r.IntN(600)) * min1)
		use(h, one, now)
		use(h, other, now.Add(30*time.Second))
		use(h, two, now.Add(min1))
	}
	got := h.Follows(one)
	if len(got) != 1 || got[0].Name != two || got[0].Share < 0.9 || got[0].Lag < 55*time.Second || got[0].Lag > 65*time.Second {
		t.Fatalf("one is followed by %v, want two after a minute, and nothing of another team", got)
	}
	if len(h.Follows(other)) != 0 {
		t.Error("a team's functions are put together with another's")
	}
	now = now.Add(12 * time.Hour)
	before, _ := h.NextUse(two, now)
	use(h, one, now)
	after, sure := h.NextUse(two, now.Add(time.Second))
	if !after.Before(before) || after.Sub(now) > 3*min1 || sure < 0.9 {
		t.Errorf("with one in use two is %v away (sure %.2f), before it was %v", after.Sub(now), sure, before.Sub(now))
	}
	f, when := ahead(h, now.Add(time.Second), now.Add(min1), WorthOf(standard, 20*time.Second, true))
	i := slices.IndexFunc(f, func(x Foreseen) bool { return x.Name == two && x.Why == "follows" })
	if i < 0 || when[i].Sub(now) > 45*time.Second {
		t.Errorf("foreseen %v at %v, want two, 20 s ahead", f, when)
	}
	h.Forget(two)
	if len(h.Follows(one)) != 0 {
		t.Error("one is followed by what is gone")
	}
}

func TestUsesFade(t *testing.T) {
	h := New()
	f := named(1)
	for i := range 8 {
		use(h, f, epoch.Add(time.Duration(i)*min1))
	}
	if n := h.Uses(f, epoch.Add(8*min1)); n < 7.5 || n > 8 {
		t.Errorf("uses %v, want 8", n)
	}
	if n := h.Uses(f, epoch.Add(usesDecay+4*min1)); n < 2.8 || n > 3.1 {
		t.Errorf("uses three hours later %v, want 8/e", n)
	}
}

// TestAnyHistory: for random observations in random order, answers and memory stay
// within their bounds, and a saved history loads.
func TestAnyHistory(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 7))
		h := New()
		h.max = 20
		now := epoch
		for range 3000 {
			switch r.IntN(10) {
			case 0:
				now = now.Add(time.Duration(r.Int64N(int64(40 * 24 * time.Hour))))
			case 1:
				now = now.Add(-time.Duration(r.Int64N(int64(time.Hour))))
			default:
				now = now.Add(time.Duration(r.Int64N(int64(20 * min1))))
			}
			f := named(r.IntN(25))
			switch r.IntN(12) {
			case 0:
				h.Forget(f)
			case 1, 2, 3, 4, 5:
				h.End(f, now)
			default:
				h.Begin(f, now)
			}
			w := WorthOf(time.Duration(r.Int64N(int64(time.Hour))), time.Duration(r.Int64N(int64(min1))), r.IntN(2) == 0)
			if next, sure := h.NextUse(f, now); !next.IsZero() && next.Before(now) || sure < 0 || sure > 1 {
				t.Fatalf("seed %d: next use %v before %v, sure %v", seed, next, now, sure)
			}
			ws := h.Windows(f, w)
			for i, x := range ws {
				if x.To < x.From || x.From < 0 || i == 0 && x.From != 0 || i > 0 && x.From < ws[i-1].To || len(ws) > maxWindows ||
					!w.Ahead && len(ws) != 1 {
					t.Fatalf("seed %d: windows %v", seed, ws)
				}
			}
			h.Ahead(now, func(functions.Name) (Worth, bool) { return w, true }, func(f Foreseen) {
				if !f.Until.After(now) || h.functions[f.Name] == nil {
					t.Fatalf("seed %d: foreseen %v at %v", seed, f, now)
				}
			})
			if h.Len() > 20 || len(h.due) > 4096 {
				t.Fatalf("seed %d: %d functions, %d due", seed, h.Len(), len(h.due))
			}
		}
		for name, p := range h.functions {
			total := uint32(0)
			for i, b := range p.idle.bins {
				total += uint32(b.n)
				if b.n == 0 || b.n > maxCount || i > 0 && b.at <= p.idle.bins[i-1].at {
					t.Fatalf("seed %d: %s has bins %v", seed, name, p.idle.bins)
				}
			}
			if total != p.idle.total || len(p.idle.bins) > maxBins {
				t.Fatalf("seed %d: %s counts %d idle times, has %d in %d bins", seed, name, p.idle.total, total, len(p.idle.bins))
			}
		}
		reload(t, h, now)
	}
}

// reload saves and loads h, and expects the same answers.
func reload(t *testing.T, h *History, now time.Time) {
	t.Helper()
	var b bytes.Buffer
	if err := h.Save(&b, now); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	g := New()
	g.max = 20
	if err := loadText(g, b.String(), now); err != nil {
		t.Fatalf("what was saved does not read: %v\n%s", err, text)
	}
	for name, p := range h.functions {
		if p.using {
			continue
		}
		a, x := h.NextUse(name, now)
		c, y := g.NextUse(name, now)
		if p.hint.IsZero() && (!a.Equal(c) || x != y) {
			t.Fatalf("%s: next use %v (%v), after loading %v (%v)", name, a, x, c, y)
		}
	}
	var twice bytes.Buffer
	if err := g.Save(&twice, now); err != nil || len(h.recent) > 0 && !sameBut(text, twice.String()) {
		t.Fatalf("saved twice, it differs (%v):\n%s\n%s", err, text, twice.String())
	}
}

// sameBut compares two files, except for the last digits of uses.
func sameBut(a, b string) bool {
	cut := func(s string) string {
		var out []string
		for part := range strings.SplitSeq(s, ",") {
			if !strings.HasPrefix(part, `"uses"`) {
				out = append(out, part)
			}
		}
		return strings.Join(out, ",")
	}
	return cut(a) == cut(b)
}

func TestLongPauseIsNoIdleTime(t *testing.T) {
	for _, c := range []struct {
		pause time.Duration
		want  uint32
	}{{min1, 4}, {time.Hour, 3}, {-time.Hour, 3}} {
		h := New()
		for i := range 4 {
			use(h, named(1), at(10*i))
		}
		var b bytes.Buffer
		if err := h.Save(&b, at(32)); err != nil {
			t.Fatal(err)
		}
		g := New()
		if err := loadText(g, b.String(), at(32).Add(c.pause)); err != nil {
			t.Fatal(err)
		}
		use(g, named(1), at(200))
		if n := g.functions[named(1)].idle.total; n != c.want {
			t.Errorf("after a pause of %v %d idle times are known, want %d", c.pause, n, c.want)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	one := func(s string) string {
		return `{"version":1,"saved":"2026-03-02T00:00:00Z","functions":[{"name":"t/f","begin":"2026-03-01T00:00:00Z","end":"2026-03-01T00:01:00Z","uses":1,"today":[0,0]` + s + `}]}`
	}
	h := New()
	h.max = 2
	if err := loadText(h, one(""), epoch); err != nil || h.Len() != 1 {
		t.Fatalf("the plain one: %v", err)
	}
	for _, c := range []struct{ text, want string }{
		{``, "invalid character"},
		{`{`, "EOF"},
		{`[]`, "cannot unmarshal"},
		{`{"version":2}`, "version 2"},
		{`{"version":1,"more":1}`, "unknown field"},
		{one("") + `}{"version":1`, "follows"},
		{strings.Replace(one(""), "t/f", "f", 1), "no name"},
		{strings.Replace(one(""), "t/f", "../f", 1), "no name"},
		{strings.Replace(one(""), "00:01:00", "-1", 1), ""},
		{strings.Replace(one(""), `"end":"2026-03-01T00:01:00Z"`, `"end":"2026-02-01T00:01:00Z"`, 1), "ends before"},
		{strings.Replace(one(""), `"uses":1`, `"uses":-1`, 1), "uses"},
		{one(`,"idle":[1]`), "bin, count"},
		{one(`,"idle":[1,0]`), "bounds"},
		{one(`,"idle":[5,1,5,1]`), "order"},
		{one(`,"idle":[673,1]`), "bounds"},
		{one(`,"idle":[-1,1]`), ""},
		{one(`,"idle":[` + strings.TrimSuffix(strings.Repeat("1,1,", 49), ",") + `]`), "bin, count"},
		{one(`,"seen":40000`), "days"},
		{one(`,"days":"AAAA"`), "96 bytes"},
		{one(`,"days":"?"`), "96 bytes"},
		{one(`,"starts":256`), "starts"},
		{one(`,"after":[{"name":"t/g","n":0,"lag":1}]`), "after"},
		{one(`,"after":[{"name":"t/g","n":1,"lag":9000000000000}]`), "after"},
		{one(`,"after":[{"name":"x y","n":1,"lag":1}]`), "no name"},
		{one(`,"after":[{},{},{},{},{}]`), "more than 4"},
		{strings.Replace(one(""), `[{`, `[{"name":"t/f","begin":"2026-03-01T00:00:00Z","end":"2026-03-01T00:01:00Z","uses":1,"today":[0,0]},{`, 1), "twice"},
	} {
		err := loadText(h, c.text, epoch)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.120s: %v, want an error with %q", c.text, err, c.want)
		}
		if h.Len() != 1 {
			t.Fatalf("%.120s: what did not read has changed the history", c.text)
		}
	}
	small := New()
	small.max = 1
	if err := loadText(small, strings.Replace(one(""), `[{`, `[{"name":"t/g","begin":"2026-03-01T00:00:00Z","end":"2026-03-01T00:01:00Z","uses":1,"today":[0,0]},{`, 1), epoch); err == nil {
		t.Error("more functions than allowed were loaded")
	}
}

func FuzzLoad(f *testing.F) {
	h := New()
	for i := range 6 {
		use(h, named(1), at(10*i))
		use(h, named(2), at(10*i+1))
	}
	var b bytes.Buffer
	if err := h.Save(&b, at(100)); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(`{"version":1,"saved":"2026-03-02T00:00:00Z","functions":[]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		h := New()
		h.max = 20
		if loadText(h, string(text), at(200)) != nil {
			return
		}
		for name := range h.functions {
			if _, sure := h.NextUse(name, at(200)); sure < 0 || sure > 1 {
				t.Fatalf("sure %v", sure)
			}
			h.Windows(name, WorthOf(standard, min1, true))
		}
		h.Ahead(at(200), func(functions.Name) (Worth, bool) { return WorthOf(standard, min1, true), true }, func(Foreseen) {})
		reload(t, h, at(200))
	})
}

// TestMemory: a function with a long history takes less than 1 KiB, name included.
func TestMemory(t *testing.T) {
	const n = 5000
	names := make([]functions.Name, n)
	for i := range names {
		names[i] = functions.Name{Team: "team" + strconv.Itoa(i%50), Name: "model-" + strconv.Itoa(i)}
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	r := rand.New(rand.NewPCG(3, 1))
	before := heap()
	h := New()
	now := epoch
	for range 100 {
		for _, name := range names {
			now = now.Add(time.Duration(r.ExpFloat64() * float64(50*time.Millisecond)))
			use(h, name, now)
		}
	}
	h.Ahead(now, func(functions.Name) (Worth, bool) { return WorthOf(standard, min1, true), true }, func(Foreseen) {})
	each := (heap() - before) / n
	t.Logf("%d B a function", each)
	if each > 1024 {
		t.Errorf("%d B a function, want at most 1024", each)
	}
	runtime.KeepAlive(h)
}

func BenchmarkObserve(b *testing.B) {
	h := New()
	names := make([]functions.Name, 10_000)
	for i := range names {
		names[i] = functions.Name{Team: "team" + strconv.Itoa(i%50), Name: "model-" + strconv.Itoa(i)}
	}
	r := rand.New(rand.NewPCG(4, 1))
	order := make([]int, 1<<16)
	for i := range order {
		order[i] = int(float64(len(names)) * r.Float64() * r.Float64() * r.Float64())
	}
	now, i := epoch, 0
	none := func(functions.Name) (Worth, bool) { return Worth{}, false }
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(30 * time.Millisecond)
		name := names[order[i%len(order)]]
		if i%2 == 0 {
			h.Begin(name, now)
		} else {
			h.End(names[order[(i-1)%len(order)]], now)
		}
		if i++; i%4096 == 0 {
			h.Ahead(now, none, nil)
		}
	}
}

func BenchmarkNextUse(b *testing.B) {
	h := New()
	r := rand.New(rand.NewPCG(5, 1))
	now := epoch
	for range 500 {
		now = now.Add(time.Duration(r.ExpFloat64() * float64(20*min1)))
		use(h, named(1), now)
	}
	b.Run("next", func(b *testing.B) {
		for b.Loop() {
			h.NextUse(named(1), now.Add(5*min1))
		}
	})
	b.Run("keep", func(b *testing.B) {
		for b.Loop() {
			h.KeepFor(named(1), WorthOf(standard, min1, true))
		}
	})
}

// loadText loads a history from the text of a file.
func loadText(h *History, text string, now time.Time) error {
	_, err := ReadFile(strings.NewReader(`{"version":1,"history":`+text+`}`), h, now)
	return err
}

// Save writes the history as JSON for loadText.
func (h *History) Save(w io.Writer, now time.Time) error {
	return json.NewEncoder(w).Encode(h.Snapshot(now))
}
