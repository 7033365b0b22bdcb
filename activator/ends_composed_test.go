package activator

import (
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// noting has prewarms and stagings in the log, and no comments whose number varies.
func noting(o *Options) {
	log := o.Log
	o.Prewarm = func(name functions.Name, until time.Time, by string) error {
		log.Info("prewarm", "model", name.String(), "for", time.Until(until), "by", by)
		return nil
	}
	o.Stage = func(name functions.Name, by string) error {
		log.Info("stage", "model", name.String(), "by", by)
		return nil
	}
	o.Timing.Comment, o.Currency, o.GPUHourPrice = time.Hour, "EUR", 3.6
}

// composedAnswers are answers of members that do not agree.
var composedAnswers = map[string]string{"a": "one thing and another", "b": "something else altogether", "judge": "all",
	"other": "the other"}

// asking is a request for a model, which streams or not.
func asking(model string, streams bool) string {
	body := strings.Replace(askPanel, "panel", model, 1)
	if streams {
		body = strings.Replace(body, "{", `{"stream":true,`, 1)
	}
	return body
}

// composedScenes are ends of requests for Compositions.
var composedScenes = []scene{
	{name: "a Composition whose coordinator is cold", beside: true, change: noting, play: func(s *stage) {
		m := s.newMembers(composedAnswers)
		m.took = time.Second
		s.engineAt("b:1", after(500*time.Millisecond, m.answer("b"))) // behind that of a
		s.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b")})
		s.limit(functions.Limits{ColdStartsPerHour: 3})
		s.onWake = func() { time.Sleep(2 * time.Second); s.act.Publish(m.ready("judge")) }
		for _, priority := range []string{"", "low", "low", ""} {
			s.act.Publish(testFunction("judge"))
			s.chat(asking("panel", priority == ""), "thaw-priority", priority)
			time.Sleep(time.Second)
		}
	}},
	{name: "a Router to a Composition", beside: true, change: noting, play: func(s *stage) {
		m := s.newMembers(composedAnswers)
		m.took = time.Second
		s.engineAt("b:1", after(500*time.Millisecond, m.answer("b"))) // behind that of a
		slow := func(c net.Conn, r *http.Request, body string) bool { // the first content is not the end
			if strings.Contains(body, `"stream":true`) {
				return writes("0\r\n\r\n", event1, event2, event3, eventUsage, eventDone)(c, r, body)
			}
			return m.answer("judge")(c, r, body)
		}
		s.engineAt("judge:1", slow)
		a := m.ready("a")
		a.Model.Spec.Price = functions.Price{Input: 100, Output: 1000}
		s.act.Publish(a)
		s.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b")})
		r := testRouter("panel", "other")
		r.Spec.Retry.Escalate = true
		s.act.SetRouters([]*functions.Router{r}, nil)
		for _, streams := range []bool{false, false, true, true} {
			s.chat(asking("auto", streams))
		}
		s.leaves(500*time.Millisecond, asking("auto", false))
		s.leaves(1200*time.Millisecond, asking("auto", true))
		s.chat(asking("auto", false))
		for _, status := range []int{400, 422, 429, 500} {
			s.engineAt("judge:1", after(time.Second, says(status, `{"error":{"message":"no"}}`)))
			for _, model := range []string{"auto", "panel"} {
				s.chat(asking(model, false))
				s.chat(asking(model, true))
				time.Sleep(10 * time.Second)
			}
		}
		s.note("%q", metric(s.t, s.testEnv, "thaw_composition_calls_total"))
		s.act.SetCompositions(nil)
		s.note("removed: %q", metric(s.t, s.testEnv, "thaw_composition_calls_total"))
		s.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b")})
		s.engineAt("judge:1", slow)
		time.Sleep(time.Minute)
		s.chat(asking("auto", false))
		second := panel(functions.PatternEnsemble, "a", "b")
		second.Metadata.Name, second.Spec.Coordinator = "second", "other"
		s.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b"), second})
		next := *r
		next.Spec.Rules = []functions.Rule{{Name: "general", To: []string{"panel", "second"}}}
		s.act.SetRouters([]*functions.Router{&next}, nil)
		s.engineAt("judge:1", after(time.Second, says(500, `{"error":{"message":"no"}}`)))
		time.Sleep(time.Minute)
		s.chat(asking("auto", false))
	}},
}
