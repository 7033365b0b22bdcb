package activator

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// routedPanel is a Router to a panel of a and cloud, and then to other; cloud takes public
// data alone.
func routedPanel(t *testing.T, answers map[string]string, edit func(*functions.Router)) (*testEnv, *members) {
	w := newTestEnv(t, nil)
	m := w.newMembers(answers)
	w.engineAt("cloud:1", goodAnswer)
	w.publish(testRemote("cloud", "cloud:1", functions.DataPublic))
	w.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "cloud")})
	r := testRouter("panel", "other")
	if edit != nil {
		edit(r)
	}
	w.act.SetRouters([]*functions.Router{r}, nil)
	return w, m
}

var panelAnswers = map[string]string{"a": "one thing and another", "judge": "all", "other": "the other"}

// TestRouterToComposition: a Composition is a target as a model is: plain and streamed, with
// the decision in record and header. The Router's class of data holds for its calls.
func TestRouterToComposition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := routedPanel(t, panelAnswers, nil)
		for _, body := range []string{autoRequest, strings.Replace(autoRequest, "{", `{"stream":true,`, 1)} {
			r := w.post("/v1/chat/completions", body)
			c, rec := readComposed(t, r.body), w.decision(r)
			if r.status != 200 || c.Content != "all" || c.Model != "panel" || len(c.Thaw.Calls) != 3 || c.Thaw.Calls[1].Error != "" {
				t.Errorf("%+v", r)
			}
			if first := rec.Candidates[0]; rec.Target != "panel" || rec.Code != 200 || first.Kind != functions.KindComposition ||
				first.State != "ready" || first.WhyNot != "" {
				t.Errorf("%+v", rec)
			}
			if h := r.head.Get("thaw-route"); h != "router=auto; rule=general; target=panel; stage=rules; cache=off; state=ready" {
				t.Error(h)
			}
		}
		for why, r := range map[string]result{
			"2 of its members must answer, and 1 may be asked; `cloud`: the data is secret": w.post("/v1/chat/completions", autoRequest, "thaw-data", "secret"),
			"a Composition answers /v1/chat/completions alone":                              w.post("/v1/completions", `{"model":"auto","prompt":"hello"}`),
			"a Composition takes no tools":                                                  w.post("/v1/chat/completions", strings.Replace(autoRequest, "{", `{"tools":[{"type":"function","function":{"name":"f"}}],`, 1)),
		} {
			if rec := w.decision(r); rec.Target != "other" || !strings.Contains(rec.Candidates[0].WhyNot, why) {
				t.Errorf("%s: %+v", why, rec)
			}
		}
	})
}

// TestRoutedCompositionFails: a Composition that fails before the first byte is followed by
// the next target; one that another target failed before is not asked.
func TestRoutedCompositionFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := routedPanel(t, map[string]string{"a": "one", "judge": "!", "other": "the other"}, func(r *functions.Router) { r.Spec.Retry.Escalate = true })
		for _, body := range []string{autoRequest, strings.Replace(autoRequest, "{", `{"stream":true,`, 1)} {
			r := w.post("/v1/chat/completions", body)
			if rec := w.decision(r); readComposed(t, r.body).Content != "the other" || rec.Target != "other" || rec.After != "panel" ||
				rec.Code != 200 || !strings.Contains(rec.Candidates[0].WhyNot, "it failed this request") {
				t.Errorf("%+v %+v", r, rec)
			}
		}
		w, _ = routedPanel(t, map[string]string{"a": "one", "judge": "all", "other": "!"}, func(r *functions.Router) {
			r.Spec.Retry.Escalate, r.Spec.Rules[0].To = true, []string{"other", "panel"}
		})
		if r := w.post("/v1/chat/completions", autoRequest); r.status < 500 || w.decision(r).Target != "other" {
			t.Errorf("%+v %+v", r, w.decision(r))
		}
	})
}

// TestCompositionExpected: a Composition is ready when its coordinator and a quorum are. What
// it is expected to take and to cost is what its answers took and cost.
func TestCompositionExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, m := routedPanel(t, panelAnswers, func(r *functions.Router) { r.Spec.Cold = functions.ColdOther })
		m.took = 2 * time.Second
		candidate := func() functions.RouteCandidate {
			return w.decision(w.post("/v1/chat/completions", autoRequest)).Candidates[0]
		}
		if c := candidate(); c.ExpectedMS != -1 || c.Cost != -1 || c.State != "ready" {
			t.Errorf("before any request: %+v", c)
		}
		if c := candidate(); c.ExpectedMS != 4000 {
			t.Errorf("after one that took 2 s for the members and 2 s for the coordinator: %+v", c)
		}
		cold := testFunction("judge")
		w.publish(cold)
		r := w.post("/v1/chat/completions", autoRequest)
		if rec := w.decision(r); rec.Target != "other" || rec.Candidates[0].State != "cold" || rec.Candidates[0].WhyNot != "" {
			t.Errorf("with a cold coordinator: %+v", rec)
		}
	})
}

// TestCompositionOfOtherTeam: a model of another team is not loaded ahead, as the next one
// would be.
func TestCompositionOfOtherTeam(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var started atomic.Int32
		w := newTestEnv(t, func(o *Options) {
			o.Open = false
			o.Prewarm = func(functions.Name, time.Time, string) error {
				started.Add(1)
				return nil
			}
		})
		key, _, err := w.keys.Create("default", "", false)
		if err != nil {
			t.Fatal(err)
		}
		w.newMembers(map[string]string{"a": "Paris", "b": "Paris"})
		for _, team := range []string{"blue", "default"} {
			w.act.Publish(testFunction(team + "/coordinator"))
			c := panel(functions.PatternEnsemble, "a", "b")
			c.Spec.Coordinator = team + "/coordinator"
			w.act.SetCompositions([]*functions.Composition{c})
			r := w.post("/v1/chat/completions", askPanel, "Authorization", "Bearer "+key)
			synctest.Wait()
			if got := int(started.Load()) + w.count(&w.wakes); r.status != 200 || (got > 0) != (team == "default") {
				t.Errorf("%s: %d prewarmed, %d wakes: %+v", team, started.Load(), w.count(&w.wakes), r)
			}
		}
	})
}
