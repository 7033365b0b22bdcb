package api

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/routes"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// TestDecisions: a key reads and scores the decisions about its team's requests, an admin
// all, and a dry run is made as the team of the key.
func TestDecisions(t *testing.T) {
	log := &routes.Log{}
	var scores []float64
	log.Scored = func(_ functions.RouteRecord, _ string, score float64) { scores = append(scores, score) }
	log.Put(nil, "a", "mine", &functions.RouteRecord{ID: "req-a", Router: "a/auto", Target: "one"})
	log.Put(nil, "b", "mine", &functions.RouteRecord{ID: "req-b", Router: "b/auto", Target: "two"})
	x := start(t, func(o *Options) {
		o.Decisions.Log = log
		o.Decisions.DryRoute = func(id auth.Identity, router, path string, header func(string) string,
			body []byte) (functions.RouteRecord, *openai.Error) {
			if router == "none" {
				return functions.RouteRecord{}, openai.New(openai.NotFound, "no such Router")
			}
			return functions.RouteRecord{Router: id.Team + "/" + router, Rule: path, Target: string(body), Reason: header("thaw-data")}, nil
		}
	})
	x.keys(t)
	for _, c := range []struct {
		name, method, path, body, key string
		status                        int
		says                          string
	}{
		{"its own", "GET", "/api/v1/routes/req-a", "", x.keyA, 200, `"target":"one"`},
		{"by the client's id", "GET", "/api/v1/routes/mine", "", x.keyB, 200, `"target":"two"`},
		{"another team's", "GET", "/api/v1/routes/req-b", "", x.keyA, 404, "No decision about the request req-b"},
		{"an admin reads all", "GET", "/api/v1/routes/req-b", "", x.keyAdm, 200, `"target":"two"`},
		{"without a key", "GET", "/api/v1/routes/req-a", "", "", 401, ""},
		{"the list", "GET", "/api/v1/routes", "", x.keyA, 200, `{"items":[{"id":"req-a"`},
		{"an admin's list", "GET", "/api/v1/routes?limit=1", "", x.keyAdm, 200, `{"items":[{"id":"req-b"`},
		{"a limit that is none", "GET", "/api/v1/routes?limit=x", "", x.keyAdm, 400, "limit"},
		{"an outcome", "POST", "/api/v1/routes/mine/outcome", `{"score":0.75}`, x.keyA, 200, `"outcome":0.75`},
		{"of another team", "POST", "/api/v1/routes/req-b/outcome", `{"score":0}`, x.keyA, 404, ""},
		{"without a score", "POST", "/api/v1/routes/req-a/outcome", `{}`, x.keyA, 400, "from 0 (bad) to 1 (good)"},
		{"above 1", "POST", "/api/v1/routes/req-a/outcome", `{"score":5}`, x.keyA, 400, "from 0 (bad) to 1 (good)"},
		{"another key in it", "POST", "/api/v1/routes/req-a/outcome", `{"score":1,"text":"x"}`, x.keyA, 400, "text"},
		{"a dry run", "POST", "/api/v1/route?router=auto", `{"a":1}`, x.keyA, 200, `"router":"a/auto","rule":"/v1/chat/completions","stage":"","target":"{\"a\":1}"`},
		{"an admin's", "POST", "/api/v1/route?path=/v1/completions", `{}`, x.keyAdm, 200, `"router":"default/","rule":"/v1/completions"`},
		{"of no Router", "POST", "/api/v1/route?router=none", `{}`, x.keyA, 404, "no such Router"},
		{"without a key", "POST", "/api/v1/route", `{}`, "", 401, ""},
	} {
		if status, _, body := x.ask(t, c.method, c.path, c.key, c.body); status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d %s", c.name, status, body)
		}
	}
	if len(scores) != 1 || scores[0] != 0.75 {
		t.Errorf("counted: %v", scores)
	}
	bare := start(t, nil)
	bare.keys(t)
	if status, _, body := bare.ask(t, "GET", "/api/v1/routes/x", bare.keyAdm, ""); status != 404 ||
		!strings.Contains(body, "keeps no decisions") {
		t.Errorf("%d %s", status, body)
	}
}
