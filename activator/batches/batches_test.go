package batches

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/batches/store"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/spend"
)

// Lines over five models on one place: each model is loaded once, the one that is there is
// used first and then the one with the most lines, and each line has its answer.
func TestEachModelIsLoadedOnce(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0", "m1", "m2", "m3", "m4")
		w.there = "m3"
		r := w.open(dir, Options{})
		defer r.end()
		id := r.create(lines(500, "m0", "m1", "m2", "m3", "m4", "m2"), "24h", httpserver.Field{Name: "thaw-data", Value: "secret"})
		b := r.wait(id)
		if got := counted(r.read(b)); b.Status != store.Completed || got["200"] != 500 || b.ErrorFileID != nil || b.CompletedAt == nil ||
			b.FinalizingAt == nil || b.InProgressAt == nil {
			t.Errorf("%+v %v", b, got)
		}
		if b.Usage == nil || b.Usage.InputTokens != 1500 || b.Usage.OutputTokens != 1000 || b.Usage.TotalTokens != 2500 {
			t.Errorf("usage: %+v", b.Usage)
		}
		loads := w.loaded()
		slices.Sort(loads)
		if !slices.Equal(loads, []string{"m0", "m1", "m2", "m4"}) || w.loaded()[0] != "m2" {
			t.Errorf("loaded: %v", w.loaded())
		}
		if w.mostOf("m2") != 16 {
			t.Errorf("%d lines of a model at once", w.mostOf("m2"))
		}
		if !maps.Equal(w.callers, map[string]bool{"default k1 false low secret": true}) {
			t.Errorf("the data path saw %v", w.callers)
		}
	})
}

// While a request of another client waits, no line is sent, and no cold model is loaded for a
// while after it.
func TestOthersGoFirst(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0", "m1", "busy")
		w.there = "m0"
		r := w.open(dir, Options{Concurrency: 2})
		defer r.end()
		id := r.create(lines(200, "m0", "m1"), "24h")
		pass := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		entries := func() int { return r.batch(id).RequestCounts.Completed }
		pass(10 * time.Second)
		if entries() == 0 {
			t.Fatal("nothing runs")
		}
		w.mu.Lock()
		w.extra["busy"] = 1
		w.mu.Unlock()
		pass(2 * time.Second) // the lines that run end
		before := entries()
		pass(5 * time.Minute)
		if got := entries(); got != before {
			t.Errorf("%d lines ran while another's request waited", got-before)
		}
		w.mu.Lock()
		w.extra["busy"] = 0
		w.there = "busy" // it took the place of m0
		w.mu.Unlock()
		pass(25 * time.Second)
		if len(w.loaded()) != 0 {
			t.Errorf("%v was loaded at once", w.loaded())
		}
		b := r.wait(id)
		if got := counted(r.read(b)); got["200"] != 200 || len(w.loaded()) != 2 {
			t.Errorf("%v, loaded: %v", got, w.loaded())
		}
	})
}

// A deadline that is near demands that lines run although others wait; what it comes too
// late for has expired.
func TestDeadline(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0", "busy")
		w.extra["busy"] = 1
		w.line = 10 * time.Second
		r := w.open(dir, Options{Concurrency: 1})
		defer r.end()
		began := time.Now()
		b := r.wait(r.create(lines(20, "m0"), "10m"))
		got := counted(r.read(b))
		if b.Status != store.Expired || b.ExpiredAt == nil || got["200"] < 4 || got["200"] > 7 || got["batch_expired"] != 20-got["200"] {
			t.Errorf("%+v %v", b, got)
		}
		if d := time.Since(began); d < 10*time.Minute || d > 10*time.Minute+5*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// What may pass is tried again, what may be the line's own fault a few times, and what is
// its fault never.
func TestRetries(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0", "broken", "odd")
		w.there = "m0"
		problem := func(code string) string {
			return `{"error":{"message":"it is so","type":"server_error","param":null,"code":"` + code + `"}}`
		}
		w.answers = func(model, text string, try int) (int, string, string) {
			switch {
			case model == "broken":
				return 503, "x-should-retry: false", problem("model_load_failed")
			case text == "busy" && try < 20:
				return 503, "retry-after: 5", problem("queue_full")
			case text == "limited" && try < 3:
				return 429, "retry-after: 1", problem("rate_limit_exceeded")
			case text == "crash":
				return 502, "", problem("engine_crashed")
			case text == "crash once" && try == 1:
				return 502, "", problem("engine_crashed")
			case text == "wrong":
				return 400, "", problem("context_length_exceeded")
			case text == "panic":
				panic("a bug")
			case text == "no json":
				return 200, "", "it works!\nreally"
			case text == "twice":
				return 200, "", `{"a":1,"a":2}`
			case text == "deep":
				return 200, "", strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
			}
			return 0, "", ""
		}
		r := w.open(dir, Options{})
		defer r.end()
		var in strings.Builder
		for _, id := range []string{"busy", "limited", "crash", "crash once", "wrong", "panic", "no json", "twice", "deep", "well"} {
			in.WriteString(line(id, "m0"))
		}
		for i := range 50 {
			in.WriteString(line(fmt.Sprintf("broken %d", i), "broken"))
		}
		b := r.wait(r.create(in.String(), "24h"))
		got := r.read(b)
		want := map[string]string{"busy": "200", "limited": "200", "crash": "502", "crash once": "200", "wrong": "400", "panic": "server_error", "no json": "200", "twice": "200", "deep": "200", "well": "200"}
		tries := map[string]int{"busy": 20, "limited": 3, "crash": 5, "crash once": 2, "wrong": 1, "panic": 5, "no json": 1, "twice": 1, "deep": 1, "well": 1}
		broken := 0
		for i := range 50 {
			id := fmt.Sprintf("broken %d", i)
			want[id] = "503"
			broken += w.asked[id]
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%v", got)
		}
		for id, n := range tries {
			if w.asked[id] != n {
				t.Errorf("%s was tried %d times, want %d", id, w.asked[id], n)
			}
		}
		if broken > 60 {
			t.Errorf("a model that cannot be loaded was asked for %d times", broken)
		}
	})
}

// A model that cannot be loaded is tried again after pauses that grow.
func TestPausesOfLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "broken")
		var tries []time.Time
		w.answers = func(string, string, int) (int, string, string) {
			tries = append(tries, time.Now())
			return 503, "x-should-retry: false", `{"error":{"message":"no","type":"server_error","param":null,"code":"model_load_failed"}}`
		}
		r := w.open(t.TempDir(), Options{})
		defer r.end()
		r.wait(r.create(lines(1, "broken"), "24h"))
		if len(tries) != maxTries {
			t.Fatalf("%d tries", len(tries))
		}
		for i, want := 1, loadPause; i < len(tries); i, want = i+1, 2*want {
			if gap := tries[i].Sub(tries[i-1]); gap < want || gap > want+time.Second {
				t.Errorf("try %d comes %v after the one before, want %v", i+1, gap, want)
			}
		}
	})
}

// A batch that is being finished is not cancelled any more.
func TestCancelWhileFinishing(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0")
		r := w.open(dir, Options{})
		id := r.create(lines(1, "m0"), "24h")
		r.end()
		if _, err := r.change("default", id, func(b *store.Record) bool {
			b.Status, b.Outcome = store.Finalizing, store.Completed
			return true
		}); err != nil {
			t.Fatal(err)
		}
		if a := r.do("POST", "/v1/batches/"+id+"/cancel", ""); a.status != 409 ||
			!strings.Contains(a.body, "finalizing and cannot be cancelled") {
			t.Errorf("%d %s", a.status, a.body)
		}
		if b := r.batch(id); b.Status != store.Finalizing || b.CancellingAt != nil {
			t.Errorf("%+v", b)
		}
	})
}

// A cancelled batch has an entry for each line within seconds; the lines that run are cut.
func TestCancel(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0")
		w.there = "m0"
		w.line = time.Minute
		r := w.open(dir, Options{Concurrency: 4})
		defer r.end()
		id := r.create(lines(100, "m0"), "24h")
		<-time.After(90 * time.Second)
		if a := r.do("POST", "/v1/batches/"+id+"/cancel", ""); a.status != 200 || !strings.Contains(a.body, `"status":"cancelling"`) {
			t.Errorf("%d %s", a.status, a.body)
		}
		if a := r.do("POST", "/v1/batches/"+id+"/cancel", ""); a.status != 200 {
			t.Errorf("again: %d %s", a.status, a.body)
		}
		began := time.Now()
		b := r.wait(id)
		if got := counted(r.read(b)); b.Status != store.Cancelled || b.CancelledAt == nil || b.CancellingAt == nil || got["200"] != 4 ||
			got["batch_cancelled"] != 96 {
			t.Errorf("%+v %v", b, got)
		}
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("it took %v", d)
		}
		if n := w.active["m0"]; n != 0 {
			t.Errorf("%d lines run on", n)
		}
		if a := r.do("POST", "/v1/batches/"+id+"/cancel", ""); a.status != 200 {
			t.Errorf("after its end: %d %s", a.status, a.body)
		}
	})
}

// The lines of a batch whose key was deleted end as errors that say so.
func TestKeyDeleted(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0")
		w.there = "m0"
		r := w.open(dir, Options{Concurrency: 1})
		defer r.end()
		id := r.create(lines(100, "m0"), "24h")
		<-time.After(10500 * time.Millisecond)
		w.mu.Lock()
		delete(w.keys, "k1")
		w.mu.Unlock()
		b := r.wait(id)
		if got := counted(r.read(b)); b.Status != store.Completed || got["200"] < 9 || got["200"] > 12 ||
			got["invalid_api_key"] != 100-got["200"] {
			t.Errorf("%+v %v", b, got)
		}
	})
}

// A process is killed at many moments of a batch, from its creation to its end, and another
// goes on from what is in the folder: each line has exactly one entry.
func TestKilledAtAnyTime(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0", "m1")
		w.load, w.line = 3*time.Second, 700*time.Millisecond
		r := w.open(dir, Options{Concurrency: 2})
		defer r.end()
		id := r.create(lines(40, "m0", "m1"), "24h")
		var folders []string
		for b := r.batch(id); !b.Ended(); b = r.batch(id) {
			folders = append(folders, copyFolder(t, dir))
			<-time.After(500 * time.Millisecond)
			synctest.Wait()
		}
		folders = append(folders, copyFolder(t, dir))
		if len(folders) < 20 {
			t.Fatalf("only %d moments", len(folders))
		}
		for i, folder := range folders {
			x := newWorld(t, "m0", "m1")
			n := x.open(folder, Options{})
			b := n.wait(id)
			if got := counted(n.read(b)); b.Status != store.Completed || got["200"] != 40 {
				t.Errorf("killed at moment %d: %s %v", i, b.Status, got)
			}
			if i == len(folders)-1 && len(x.asked) > 0 {
				t.Errorf("%d lines of a batch that had ended were run", len(x.asked))
			}
			n.end()
		}
	})
}

// A process is killed at many moments of a batch whose lines cost money: before and after a
// line's entry is written, and before and after the ledger's file is. Whatever the next
// process finds, each line is charged once.
func TestChargedOnce(t *testing.T) {
	dir := t.TempDir()
	open := func(folder string) *spend.Ledger {
		l, err := spend.Open(folder)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0", "m1")
		w.load, w.line, w.ledger = 2*time.Second, 900*time.Millisecond, open(dir)
		r := w.open(dir, Options{Concurrency: 3})
		defer r.end()
		id := r.create(lines(30, "m0", "m1"), "24h")
		var folders []string
		random := rand.New(rand.NewPCG(28, 1))
		for b := r.batch(id); !b.Ended(); b = r.batch(id) {
			if random.IntN(3) == 0 {
				if err := w.ledger.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			folders = append(folders, copyFolder(t, dir))
			<-time.After(500 * time.Millisecond)
			synctest.Wait()
		}
		folders = append(folders, copyFolder(t, dir))
		behind := 0
		for i, folder := range folders {
			x := newWorld(t, "m0", "m1")
			x.ledger = open(folder)
			before := x.ledger.Spent("team default", time.Now())
			n := x.open(folder, Options{})
			b := n.wait(id)
			n.end()
			if got := float64(b.RequestCounts.Completed - len(x.asked)); before < got {
				behind++
			}
			for _, account := range []string{"remote r", "team default"} {
				if got := open(copyFolder(t, folder)).Spent(account, time.Now()); got != 30 || b.Status != store.Completed {
					t.Errorf("killed at moment %d, with %v charged of %d entries: %s is charged %v for 30 lines, %s", i, before, 30-len(x.asked), account,
						got, b.Status)
				}
			}
		}
		if behind < 8 || len(folders) < 20 {
			t.Errorf("at %d of %d moments the ledger was behind the entries", behind, len(folders))
		}
	})
}

// Lines that failed are charged for what they cost.
func TestFailuresAreCharged(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0")
		ledger, err := spend.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		w.ledger, w.fails = ledger, true
		r := w.open(dir, Options{})
		defer r.end()
		b := r.wait(r.create(lines(5, "m0"), "24h"))
		if got := ledger.Spent("team default", time.Now()); got != 5 || b.RequestCounts.Failed != 5 {
			t.Errorf("%v charged for 5 lines: %+v", got, b.RequestCounts)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.running != 0 || r.bytes != 0 {
			t.Errorf("%d lines of %d bytes count as running", r.running, r.bytes)
		}
	})
}

// A server that shuts down sends nothing more, waits for the lines that run, and the next
// one goes on.
func TestDrain(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0")
		w.there = "m0"
		r := w.open(dir, Options{Concurrency: 3})
		defer func() { r.end() }()
		id := r.create(lines(30, "m0"), "24h")
		<-time.After(2500 * time.Millisecond)
		synctest.Wait()
		began := time.Now()
		r.Drain(t.Context())
		if d := time.Since(began); d == 0 || d > time.Second {
			t.Errorf("it waited %v", d)
		}
		asked := len(w.asked)
		r.end()
		if r = w.open(dir, Options{}); asked >= 30 {
			t.Fatal("too early")
		}
		b := r.wait(id)
		if got := counted(r.read(b)); got["200"] != 30 || w.asked["l0"] != 1 {
			t.Errorf("%v", got)
		}
	})
}

// Where there are two GPUs, two cold models are loaded at once, and no third.
func TestTwoGPUs(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0", "m1", "m2")
		w.there = "m9"
		w.active["m9"] = 1 // none is ever loaded
		r := w.open(dir, Options{GPUs: func() int { return 2 }})
		defer r.end()
		id := r.create(lines(30, "m0", "m1", "m2"), "1h")
		<-time.After(10 * time.Minute)
		synctest.Wait()
		w.mu.Lock()
		if n := w.waiting["m0"] + w.waiting["m1"] + w.waiting["m2"]; n != 2 {
			t.Errorf("%d lines wait for models: %v", n, w.waiting)
		}
		w.active["m9"] = 0
		w.change()
		w.mu.Unlock()
		if got := counted(r.read(r.wait(id))); got["200"] != 30 || len(w.loaded()) != 3 {
			t.Errorf("%v, loaded: %v", got, w.loaded())
		}
	})
}

// Three thousand lines over five models on one GPU, beside the traffic of a sixth, which comes
// in bursts: each model of the batch is loaded about once, in the pauses, and the p99 of the
// other requests is what it is without the batch.
func TestBatchBesideTraffic(t *testing.T) {
	traffic := func(t *testing.T, w *world) (p99 time.Duration) {
		var took []time.Duration
		for range 8 {
			for range 100 {
				began := time.Now()
				w.ask("hot")
				took = append(took, time.Since(began))
				<-time.After(4 * time.Second)
			}
			<-time.After(5 * time.Minute)
		}
		slices.Sort(took)
		return took[len(took)*99/100]
	}
	var alone time.Duration
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "hot")
		w.there = "hot"
		alone = traffic(t, w)
	})
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "hot", "m0", "m1", "m2", "m3", "m4")
		w.there = "hot"
		r := w.open(dir, Options{})
		defer r.end()
		var in strings.Builder
		naive, last, random := 0, "", rand.New(rand.NewPCG(1, 2))
		for i := range 3000 {
			m := fmt.Sprintf("m%d", random.IntN(5))
			if m != last {
				naive, last = naive+1, m
			}
			in.WriteString(line(fmt.Sprintf("l%d", i), m))
		}
		id := r.create(in.String(), "24h")
		beside := traffic(t, w)
		b := r.wait(id)
		ended := time.Unix(*b.CompletedAt, 0).Sub(time.Unix(b.CreatedAt, 0))
		if got := counted(r.read(b)); got["200"] != 3000 || ended > 4*time.Hour {
			t.Errorf("%v after %v", got, ended)
		}
		loads := len(w.loaded()) - count(w.loaded(), "hot")
		t.Logf("p99 %v alone and %v beside the batch; %d loads, %d in the order of the file; ended after %v", alone, beside, loads, naive, ended)
		if loads*20 > naive || loads > 8 || beside > alone*11/10 {
			t.Errorf("%d loads of %d, p99 %v", loads, naive, beside)
		}
	})
}

func count(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}

// A function in use keeps its GPU: for lines a cold model is loaded when it has had no
// request for a while, and where there is another GPU at once.
func TestFunctionInUseKeepsItsGPU(t *testing.T) {
	for gpus, want := range map[int]int{1: 0, 2: 1} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, "hot", "m0")
			w.there = "hot"
			r := w.open(dir, Options{GPUs: func() int { return gpus }})
			defer r.end()
			id := ""
			for i := range 20 {
				w.ask("hot")
				<-time.After(10 * time.Second)
				if i == 0 {
					id = r.create(lines(10, "m0"), "24h")
				}
			}
			if n := count(w.loaded(), "m0"); min(n, 1) != want {
				t.Errorf("%d GPUs: %d loads beside a function in use", gpus, n)
			}
			if got := counted(r.read(r.wait(id))); got["200"] != 10 || count(w.loaded(), "m0") == 0 {
				t.Errorf("%v", got)
			}
		})
	}
}

// ask sends a request of another client, and waits for its answer.
func (w *world) ask(model string) {
	w.enter(&httpserver.Context{}, model)
	<-time.After(w.line)
	w.mu.Lock()
	w.active[model]--
	w.lastEnd[model] = time.Now()
	w.change()
	w.mu.Unlock()
}

// No more lines are sent than the limits of their team have room for beside its other
// requests, until the deadline demands it.
func TestLimitsOfTheTeam(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0")
		w.there = "m0"
		r := w.open(dir, Options{Spare: func(team string) int {
			w.mu.Lock()
			defer w.mu.Unlock()
			return 3 - w.active["m0"]
		}})
		defer r.end()
		b := r.wait(r.create(lines(100, "m0"), "24h"))
		if got := counted(r.read(b)); got["200"] != 100 || w.mostOf("m0") != 3 {
			t.Errorf("%v, %d at once", got, w.mostOf("m0"))
		}
	})
}

// A batch that must end soon does not wait behind the lines of one that has time.
func TestShortWindowGoesFirst(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "m0")
		w.there, w.line = "m0", 10*time.Second
		w.answers = func(model, text string, try int) (int, string, string) {
			if text == "again" && try == 1 {
				return 502, "", `{"error":{"code":"engine_crashed"}}`
			}
			return 0, "", ""
		}
		r := w.open(dir, Options{Concurrency: 1})
		defer r.end()
		long := r.create(lines(200, "m0"), "24h")
		<-time.After(time.Minute)
		b := r.wait(r.create(line("again", "m0")+line("s1", "m0")+line("s2", "m0"), "10m"))
		if got := counted(r.read(b)); b.Status != store.Completed || got["200"] != 3 {
			t.Errorf("%s %v", b.Status, got)
		}
		if b := r.wait(long); b.Status != store.Completed || b.RequestCounts.Completed != 200 {
			t.Errorf("%+v", b)
		}
	})
}
