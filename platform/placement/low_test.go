package placement

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// low makes the last n waiting requests of a function, and all that are at engines, of
// priority low.
func low(n int) func(*Function) {
	return func(f *Function) { f.LowActive, f.LowQueued = f.Active, n }
}

// usedByLow makes the last requests that ended of priority low: since then none of another
// ended.
func usedByLow(ended, since Instant) func(*Function) {
	return func(f *Function) { f.LastEnd, f.LowSince = ended, since }
}

// change is an edit for its type.
func change(edit func(*Function)) func(*Function) { return edit }

func max2(f *Function) { f.Scale.Max, f.Scale.Target = 2, 1 }

// TestLow: starts for requests of priority low, and what makes room for and because of them.
func TestLow(t *testing.T) {
	const now = 3 * time.Hour
	recently := now - time.Minute
	const waits = "blocked default/z no_capacity"
	for _, c := range []struct {
		what  string
		gpus  int
		teams map[string]Team
		fs    []*Function
		want  string
	}{
		{what: "they start a model on a free GPU", gpus: 1, fs: []*Function{model("z", 1, waiting(3, now-1), low(3))}, want: "start default/z on n[0] (low)"},
		{what: "behind all others", gpus: 1, fs: []*Function{model("z", 1, waiting(3, recently), low(3)), model("y", 1, waiting(1, now-1))}, want: "start default/y on n[0] (demand); " + waits},
		{what: "an idle model stays for its idle time", gpus: 1, fs: []*Function{
			model("x", 1, ready("n", 1, 0, 0), change(func(f *Function) { f.LastEnd = recently })), model("z", 1, waiting(3, 1), low(3))}, want: waits},
		{what: "and one that is busy, however long they wait", gpus: 1, fs: []*Function{
			model("x", 1, ready("n", 1, 1, 0), waiting(1000, 1)), model("z", 1, waiting(3, 1), low(3))}, want: waits},
		{what: "also where another team had more", gpus: 1, teams: map[string]Team{"h": {Used: 500}, "default": {}}, fs: []*Function{
			model("h/x", 1, ready("n", recently, 1, 0), waiting(1000, 1)), model("z", 1, waiting(3, 1), low(3))}, want: waits},
		{what: "one that low requests have finished with makes room", gpus: 1, fs: []*Function{
			model("x", 1, ready("n", 1, 0, 0), usedByLow(recently, 1)), model("z", 1, waiting(3, now-1), low(3))}, want: "stop default/x-0 (priority)"},
		{what: "not in the same moment", gpus: 1, fs: []*Function{
			model("x", 1, ready("n", 1, 0, 0), usedByLow(now-time.Second, 1)), model("z", 1, waiting(3, now-1), low(3))}, want: waits},
		{what: "nor within the idle time after others", gpus: 1, fs: []*Function{
			model("x", 1, ready("n", 1, 0, 0), usedByLow(recently, now-4*time.Minute)), model("z", 1, waiting(3, now-1), low(3))}, want: waits},
		{what: "but after it", gpus: 1, fs: []*Function{
			model("x", 1, ready("n", 1, 0, 0), usedByLow(recently, now-6*time.Minute)), model("z", 1, waiting(3, now-1), low(3))}, want: "stop default/x-0 (priority)"},
		{what: "nor for others that ended before it was loaded", gpus: 1, fs: []*Function{
			model("x", 1, ready("n", now-2*time.Minute, 0, 0), usedByLow(recently, now-4*time.Minute)), model("z", 1, waiting(3, now-1), low(3))}, want: "stop default/x-0 (priority)"},
		{what: "but for those it served, also where low ones had it loaded", gpus: 1, fs: []*Function{
			model("x", 1, ready("n", now-6*time.Minute, 0, 0), usedByLow(recently, now-4*time.Minute)), model("z", 1, waiting(3, now-1), low(3))}, want: waits},
		{what: "one that is loaded serves the low requests that wait for it first", gpus: 1, fs: []*Function{
			model("x", 1, ready("n", now-10*time.Minute, 1, 0), waiting(100, recently), low(100)), model("z", 1, waiting(3, 1), low(3))}, want: waits},
		{what: "for its share of time", gpus: 1, fs: []*Function{
			model("x", 1, ready("n", now-15*time.Minute, 1, 0), waiting(100, recently), low(100)), model("z", 1, waiting(3, 1), low(3))}, want: "stop default/x-0 (priority)"},
		{what: "one that only they use leaves for any other request", gpus: 1, fs: []*Function{
			model("x", 1, ready("n", recently, 8, 0), waiting(100, 1), low(100)), model("z", 1, waiting(1, now-1))}, want: "stop default/x-0 (priority)"},
		{what: "also of another team", gpus: 1, teams: map[string]Team{"h": {Used: 500}, "default": {}}, fs: []*Function{
			model("x", 1, ready("n", recently, 8, 0), low(0)), model("h/z", 1, waiting(1, now-1))}, want: "stop default/x-0 (priority)"},
		{what: "but not what its team is guaranteed", gpus: 1, teams: map[string]Team{"default": {TeamGPUs: functions.TeamGPUs{Guaranteed: 1}}}, fs: []*Function{
			model("x", 1, ready("n", recently, 8, 0), low(0)), model("h/z", 1, waiting(1, now-1))}, want: "blocked h/z no_capacity"},
		{what: "one that is on its way likewise", gpus: 1, fs: []*Function{
			model("x", 1, starting("n", true, 0), waiting(100, 1), low(100)), model("z", 1, waiting(1, now-1))}, want: "stop default/x-0 (priority)"},
		{what: "not one that another request waits for too", gpus: 1, fs: []*Function{
			model("x", 1, ready("n", recently, 8, 0), waiting(100, recently), low(99)), model("z", 1, waiting(1, now-1))}, want: waits},
		{what: "of two replicas the one that the others do not need", gpus: 2, fs: []*Function{
			model("x", 1, max2, ready("n", recently, 1, 0), ready("n", recently, 1, 1), change(func(f *Function) { f.LowActive, f.Desired = 1, 2 })),
			model("z", 1, waiting(1, now-1))}, want: "stop default/x-1 (priority)"},
		{what: "before an idle one", gpus: 2, fs: []*Function{
			model("x", 1, ready("n", recently, 1, 0), low(0)),
			model("y", 1, ready("n", 1, 0, 1), change(func(f *Function) { f.LastEnd = recently })),
			model("z", 1, waiting(1, now-1))}, want: "stop default/x-0 (priority)"},
		{what: "one that they have finished with goes first", gpus: 3, fs: []*Function{
			model("w", 1, ready("n", 1, 0, 0), change(func(f *Function) { f.LastEnd = recently })),
			model("x", 1, ready("n", recently, 1, 1), low(0)),
			model("y", 1, ready("n", 1, 0, 2), usedByLow(recently, 1)),
			model("z", 1, waiting(1, now-1))}, want: "stop default/y-0 (priority)"},
		{what: "a further replica for them takes a free GPU only", gpus: 2, fs: []*Function{
			model("x", 1, max2, ready("n", recently, 1, 0), waiting(50, recently), low(50)),
			model("y", 1, ready("n", 1, 0, 1), change(func(f *Function) { f.LastEnd = recently }))}, want: "blocked default/x no_capacity"},
		{what: "and others' requests for the same model evict for it", gpus: 2, fs: []*Function{
			model("x", 1, max2, ready("n", recently, 1, 0), waiting(50, recently), low(49), change(func(f *Function) { f.LowActive = 0 })),
			model("y", 1, ready("n", 1, 0, 1), change(func(f *Function) { f.LastEnd = recently }))}, want: "stop default/y-0 (evicted)"},
		{what: "a minimum is kept for all", gpus: 1, fs: []*Function{
			model("x", 1, change(func(f *Function) { f.Scale.Min = 1 }), ready("n", recently, 1, 0), low(0)), model("z", 1, waiting(1, now-1))}, want: waits},
		{what: "and a lease", gpus: 1, fs: []*Function{
			model("x", 1, change(func(f *Function) { f.Lease = now + 1 }), ready("n", recently, 1, 0), low(0)), model("z", 1, waiting(1, now-1))}, want: waits},
		{what: "a team's own make room within its maximum", gpus: 3, teams: map[string]Team{"default": {TeamGPUs: functions.TeamGPUs{Max: 1}}}, fs: []*Function{
			model("x", 1, ready("n", recently, 1, 0), low(0)), model("z", 1, waiting(1, now-1))}, want: "stop default/x-0 (priority)"},
		{what: "and low requests wait for it, without an error", gpus: 3, teams: map[string]Team{"default": {TeamGPUs: functions.TeamGPUs{Max: 1}}}, fs: []*Function{
			model("x", 1, ready("n", 1, 0, 0), change(func(f *Function) { f.LastEnd = recently })), model("z", 1, waiting(1, now-1), low(1))}, want: waits},
	} {
		plan := DefaultPolicy.Decide(World{Nodes: []*Node{node("n", c.gpus)}, Functions: c.fs, Teams: c.teams}, now)
		if got := show(plan); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.what, got, c.want)
		}
		for name, v := range plan.Blocked {
			at := slices.IndexFunc(c.fs, func(f *Function) bool { return f.Name == name })
			if c.fs[at].OnlyLow() != strings.Contains(v.Message, "it waits for a free GPU: its priority is low") {
				t.Errorf("%s: %s: %+v", c.what, name, v)
			}
		}
	}
}
