package usageoption

import (
	"fmt"
	"testing"

	"github.com/thaw-dev/thaw/functions/openai"
)

func TestTable(t *testing.T) {
	var table Table
	table.Note("good", false)
	if !table.Note("bad", true) || table.Note("bad", true) || !table.Refuses("bad") || table.Refuses("good") || table.Refuses("new") {
		t.Errorf("%+v", table.refuses)
	}
	for _, x := range []struct {
		replica string
		status  int
		body    string
		want    bool
	}{
		{"new", 400, "bad request", true},
		{"new", 422, `{"detail":[]}`, true},
		{"new", 404, "stream_options", false},
		{"new", 500, "stream_options", false},
		{"good", 400, "too long", false},
		{"good", 400, "unknown field `stream_options`", true},
		{"good", 422, `{"detail":[{"loc":["body","include_usage"]}]}`, true},
	} {
		if got := table.MayRefuse(x.replica, x.status, []byte(x.body)); got != x.want {
			t.Errorf("%s %d %s: %v", x.replica, x.status, x.body, got)
		}
	}
	for i := range 2 * maxReplicas {
		table.Note(fmt.Sprint(i), true)
	}
	if len(table.refuses) > maxReplicas {
		t.Errorf("%d replicas", len(table.refuses))
	}
	if u := estimate(9, 7); u != (openai.Usage{Prompt: 3, Completion: 7}) {
		t.Errorf("%+v", u)
	}
}
