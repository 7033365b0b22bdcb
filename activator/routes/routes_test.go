package routes

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func TestClass(t *testing.T) {
	route := func(team string, data functions.DataClass) *Route {
		return &Route{Name: functions.Name{Team: team, Name: "auto"}, Spec: &functions.Router{Spec: functions.RouterSpec{Data: data}}}
	}
	s := &Set{data: map[string]functions.DataClass{"open": functions.DataPublic, "closed": functions.DataSecret}}
	for _, c := range []struct {
		name         string
		route        *Route
		team, header string
		want         functions.DataClass
	}{
		{"by name, nothing set", nil, "red", "", functions.DataInternal},
		{"by name, the team's", nil, "open", "", functions.DataPublic},
		{"by name, raised", nil, "open", "secret", functions.DataSecret},
		{"the header never lowers", nil, "closed", "public", functions.DataSecret},
		{"the default is not lowered", nil, "red", "public", functions.DataInternal},
		{"the Router's", route("red", functions.DataPublic), "red", "", functions.DataPublic},
		{"the Router's, raised", route("red", functions.DataPublic), "red", "internal", functions.DataInternal},
		{"the Router's before its own team's", route("closed", functions.DataPublic), "closed", "", functions.DataPublic},
		{"another team's Router lowers nothing", route("default", functions.DataPublic), "closed", "", functions.DataSecret},
		{"another team's Router, nothing set", route("default", functions.DataPublic), "red", "", functions.DataPublic},
		{"a Router that sets none", route("default", ""), "open", "", functions.DataPublic},
	} {
		if got, e := s.Class(c.route, c.team, c.header); e != nil || got != c.want {
			t.Errorf("%s: %s %v, want %s", c.name, got, e, c.want)
		}
	}
	for _, h := range []string{"Secret", "none", "secret,public"} {
		if _, e := s.Class(nil, "red", h); e == nil || e.Status != 400 || !strings.Contains(e.Message, "public, internal or secret") {
			t.Errorf("%q: %v", h, e)
		}
	}
	var none *Set
	if got, _ := none.Class(nil, "red", ""); got != functions.DataInternal {
		t.Error(got)
	}
}

func TestLog(t *testing.T) {
	var l Log
	var scored []string
	l.Scored = func(rec functions.RouteRecord, team string, score float64) {
		scored = append(scored, fmt.Sprint(rec.ID, team, score))
	}
	put := func(team, id, client string) *Logged {
		return l.Put(nil, team, client, &functions.RouteRecord{ID: id, Rule: "all", Target: "a", Cold: functions.ColdWait,
			Candidates: []functions.RouteCandidate{{Name: "a"}}})
	}
	first := put("red", "1", "mine")
	put("blue", "2", "mine")
	put("red", "3", "")
	for _, c := range []struct{ team, id, want string }{
		{"red", "1", "1"}, {"red", "mine", "1"}, {"blue", "mine", "2"}, {"blue", "1", ""}, {"", "1", "1"}, {"", "mine", "2"}, {"red", "2", ""},
		{"", "", ""}, {"red", "", ""},
	} {
		if rec, ok := l.Find(c.team, c.id); rec.ID != c.want || ok != (c.want != "") {
			t.Errorf("%q %q: %q, want %q", c.team, c.id, rec.ID, c.want)
		}
	}
	if l.Put(first, "red", "", &functions.RouteRecord{ID: "1", Target: "b", After: "a"}) != first {
		t.Error("a later decision has a place of its own")
	}
	l.Finish(first, 200)
	if rec, ok := l.Find("red", "mine"); !ok || rec.After != "a" || rec.Code != 200 {
		t.Errorf("a later decision replaces the record: %+v", rec)
	}
	if _, ok := l.SetOutcome("blue", "1", 1); ok {
		t.Error("another team's record has got an outcome")
	}
	if rec, ok := l.SetOutcome("red", "mine", 0.5); !ok || *rec.Outcome != 0.5 || fmt.Sprint(scored) != "[1red0.5]" {
		t.Errorf("%+v %v", rec, scored)
	}
	list := l.Newest("red", 10)
	if len(list) != 2 || list[0].ID != "3" || list[1].Outcome == nil {
		t.Errorf("%+v", list)
	}
	found, _ := l.Find("red", "3")
	scoredNow, _ := l.SetOutcome("blue", "2", 1)
	for _, rec := range []functions.RouteRecord{list[0], found, scoredNow} {
		if rec.Reason != "Rule all matched; a is the first eligible target." {
			t.Errorf("%+v", rec)
		}
	}
	for i := range 2*maxRecords + 7 {
		put("red", fmt.Sprint("n", i), fmt.Sprint("c", i))
	}
	if n := len(l.Newest("", 2*maxRecords)); n != maxRecords {
		t.Errorf("%d records are kept", n)
	}
	if _, ok := l.Find("red", fmt.Sprint("n", maxRecords+6)); ok {
		t.Error("an old record is found")
	}
	for _, id := range []string{fmt.Sprint("n", maxRecords+7), fmt.Sprint("c", 2*maxRecords+6)} {
		if _, ok := l.Find("red", id); !ok {
			t.Errorf("%s is not found", id)
		}
	}
	l.Finish(nil, 200) // of a request without a decision
	l.Finish(first, 500)
	if list := l.Newest("", 2); list[0].ID != fmt.Sprint("n", 2*maxRecords+6) || list[1].ID != fmt.Sprint("n", 2*maxRecords+5) {
		t.Errorf("%+v", list)
	}
}

func TestFamilies(t *testing.T) {
	f := NewFamilies()
	if f.look("red", "a", noon, true) {
		t.Error("the first is no repetition")
	}
	if f.look("blue", "a", noon, false) || f.look("red", "b", noon, false) {
		t.Error("another team's, or another beginning, is no repetition")
	}
	f = NewFamilies()
	f.look("red", "a", noon, false)
	if f.look("red", "a", noon, true) {
		t.Error("a dry run was noted")
	}
	if !f.look("red", "a", noon.Add(9*time.Minute), false) || f.look("red", "a", noon.Add(12*time.Minute), false) {
		t.Error("recent is ten minutes")
	}
}

func TestExpected(t *testing.T) {
	ready := &snapshot.Snapshot{State: functions.Ready, Replicas: []snapshot.Replica{{ID: "r", Slots: 2}}, Forecast: functions.NoForecast}
	cold := &snapshot.Snapshot{State: functions.Unloaded, Forecast: functions.Forecast{P50: 5 * time.Second, P90: 9 * time.Second}}
	unknown := &snapshot.Snapshot{State: functions.Unloaded, Forecast: functions.NoForecast}
	measured, fresh := &Pace{}, &Pace{}
	measured.Observe(true, 100*time.Millisecond, 4*time.Second, 50, 1)
	plain := &Pace{}
	plain.Observe(false, time.Second, time.Second, 0, 1)
	for _, c := range []struct {
		name string
		f    Function
		want time.Duration
	}{
		{"READY", Function{Snapshot: ready, Load: admission.Load{FreeSlots: 2}, Pace: measured}, 100 * time.Millisecond},
		{"READY, never measured", Function{Snapshot: ready, Load: admission.Load{FreeSlots: 2}, Pace: fresh}, -1},
		{"READY, plain answers only", Function{Snapshot: ready, Load: admission.Load{FreeSlots: 2}, Pace: plain}, time.Second},
		{"two wait", Function{Snapshot: ready, Load: admission.Load{Active: 2, Queued: 1}, Pace: measured}, 100*time.Millisecond + 4*time.Second},
		{"cold", Function{Snapshot: cold, Load: admission.Load{}, Pace: measured}, 5*time.Second + 100*time.Millisecond},
		{"cold, never measured", Function{Snapshot: cold, Load: admission.Load{}, Pace: fresh}, 5 * time.Second},
		{"cold, no history", Function{Snapshot: unknown, Load: admission.Load{}, Pace: measured}, -1},
	} {
		if got := c.f.expected(noon); got.Round(time.Millisecond) != c.want && (got >= 0 || c.want >= 0) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestCost(t *testing.T) {
	remote := &functions.Remote{Spec: functions.RemoteSpec{Price: functions.Price{Input: 1, Output: 10}}}
	f := Function{Snapshot: &snapshot.Snapshot{Remote: remote}, Pace: &Pace{}}
	for _, c := range []struct {
		measured, bound int64
		want            float64
	}{{0, 0, 100 + 2560}, {0, 20, 100 + 200}, {40, 0, 100 + 400}, {40, 20, 100 + 200}} {
		f.Pace = &Pace{}
		f.Pace.Observe(true, 1, 1, c.measured, 1)
		if got := f.cost(100, c.bound) * 1e6; int(got+.5) != int(c.want) {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if got := (&Function{Snapshot: &snapshot.Snapshot{Model: &functions.Model{}}, Pace: &Pace{}}).cost(1, 1); got >= 0 {
		t.Errorf("a model without a price: %v", got)
	}

	// 36 seconds at the engine, beside two others, on two GPUs at 3 an hour.
	m := functions.Defaults()
	f = Function{Snapshot: &snapshot.Snapshot{Model: &functions.Model{Spec: m}}, Pace: &Pace{}, GPUHourPrice: 3}
	if got := f.cost(1, 1); got != 0 {
		t.Errorf("a model without GPUs: %v", got)
	}
	f.Snapshot.Model.Spec.Resources.GPUs = 2
	if got := f.cost(1, 1); got >= 0 {
		t.Errorf("a model that was never asked: %v", got)
	}
	f.Pace.Observe(true, time.Second, 36*time.Second, 5, 3)
	if got := f.cost(1, 1); math.Abs(got-0.02) > 1e-9 {
		t.Errorf("12 of 36 seconds on two GPUs: %v", got)
	}
	f.Snapshot.Model.Spec.Price.Output = 10
	if got := f.cost(0, 1) * 1e6; math.Abs(got-10) > 1e-9 {
		t.Errorf("a model with a price: %v", got)
	}
}

func TestPrewarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := functions.Name{Team: "red", Name: "big"}
		var none Prewarms
		if none.Ask(name, "r", time.Now()) == "" {
			t.Error("without a platform")
		}
		calls, wait := 0, make(chan struct{})
		var fail error
		p := Prewarms{Start: func(n functions.Name, until time.Time, by string) error {
			calls++
			if n != name || by != "router red/auto" || !until.Equal(time.Now().Add(prewarmLease)) {
				t.Error(n, until, by)
			}
			<-wait
			return fail
		}}
		for range 100 { // Start has not returned yet, and no request waits for it
			if why := p.Ask(functions.Name{Team: "red", Name: "big", Adapter: "x"}, "router red/auto", time.Now()); why != "" {
				t.Error(why)
			}
		}
		close(wait)
		synctest.Wait()
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
		time.Sleep(prewarmInterval)
		fail = errors.New("the budget is used up")
		p.Ask(name, "router red/auto", time.Now())
		synctest.Wait()
		if why := p.Ask(name, "router red/auto", time.Now()); calls != 2 || why != fail.Error() {
			t.Error(calls, why)
		}
	})
}

func TestHeader(t *testing.T) {
	rec := functions.RouteRecord{Router: "red/auto", Rule: "code", Stage: functions.StageRules, Target: "coder-7b", Cache: "miss",
		Candidates: []functions.RouteCandidate{{Name: "coder-7b", State: "ready"}}}
	if got := Header(&rec, "red"); got != "router=auto; rule=code; target=coder-7b; stage=rules; cache=miss; state=ready" {
		t.Error(got)
	}
	rec.Prewarm, rec.After = "big", "small"
	if got := Header(&rec, "blue"); got != "router=red/auto; rule=code; target=coder-7b; stage=rules; "+
		"cache=miss; state=ready; prewarm=big; after=small" {
		t.Error(got)
	}
}

// TestWhyClosed: a record has the first sentence of a refusal, whole.
func TestWhyClosed(t *testing.T) {
	refusal := openai.New(openai.InsufficientQuota,
		"The budget of the remote default/cloud, 0.5 EUR a day, is used up. It renews at 2026-11-30T00:00:00Z.")
	why, e := (&Function{Refusal: refusal}).closed(time.Time{})
	if why != "The budget of the remote default/cloud, 0.5 EUR a day, is used up" || e != refusal {
		t.Errorf("%q %v", why, e)
	}
}

// TestRemember: the features of a body are read once for a team, and only where a cache has
// answered before. A form has none.
func TestRemember(t *testing.T) {
	r := &functions.Router{Metadata: functions.Metadata{Namespace: "red", Name: "auto"},
		Spec: functions.RouterSpec{Rules: []functions.Rule{{Name: "all", To: []string{"m"}}}}}
	route := NewSet(nil, []*functions.Router{r}, nil, slog.New(slog.DiscardHandler)).Find(r.FullName())
	const chat = "/v1/chat/completions"
	seen := NewFamilies()
	read := func(team, text, path string) functions.RouteFeatures {
		body := []byte(`{"model":"auto","messages":[{"role":"user","content":"` + text + `"}]}`)
		env, err := openai.Peek(body)
		if err != nil {
			t.Fatal(err)
		}
		q := Request{Team: team, Header: func(string) string { return "" }, Now: noon}
		route.Read(&q, &env, body, path, seen, false)
		if q.Hashed != (cache.Body{}) && q.Hashed != cache.BodyOf(body) {
			t.Error("the hashes are of another body")
		}
		return q.Features
	}
	const text, other = "What is the weather like?", "Write a function in Python that adds two numbers."
	want := read("red", text, chat)
	for i := range seen.readings {
		if seen.readings[i].Load() != nil {
			t.Fatal("features are remembered though no cache answers")
		}
	}
	route.Remember()
	for range 3 {
		for _, team := range []string{"red", "blue"} {
			if got := read(team, text, chat); got != want || want.TokenCount == 0 {
				t.Errorf("%+v, want %+v", got, want)
			}
			if !read(team, other, chat).Code {
				t.Error("another body has other features")
			}
		}
	}
	read("blue", text, chat) // the newest in its slot
	for i := range seen.readings {
		if at := seen.readings[i].Load(); at != nil {
			at.features.TokenCount = 7 // shows that it is given
		}
	}
	if blue, red := read("blue", text, chat), read("red", text, chat); red.TokenCount != want.TokenCount || blue.TokenCount != 7 {
		t.Errorf("%d tokens of the team whose body was forgotten, %d of the other one; want %d, 7", red.TokenCount, blue.TokenCount,
			want.TokenCount)
	}
	if got := read("red", text, "/v1/audio/transcriptions"); got.TokenCount != 0 {
		t.Errorf("a form has the features of a chat: %+v", got)
	}
}
