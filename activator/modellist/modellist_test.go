package modellist

import (
	"encoding/json/v2"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

var (
	now    = time.Unix(1_800_000_000, 0)
	modelA = functions.Name{Team: "a", Name: "m"}
)

func TestDescribe(t *testing.T) {
	failure := &snapshot.Failure{Reason: "out of memory", Until: now.Add(time.Second)}
	for name, c := range map[string]struct {
		f    *snapshot.Snapshot
		want string // status as JSON
	}{
		"not published": {nil, `{"value":"unloaded","state":"cold"}`},
		"at rest":       {&snapshot.Snapshot{State: functions.Unloaded}, `{"value":"unloaded","state":"cold"}`},
		"loaded":        {&snapshot.Snapshot{State: functions.Ready, Replicas: []snapshot.Replica{{ID: "r"}}}, `{"value":"loaded","state":"ready"}`},
		"loading": {&snapshot.Snapshot{State: functions.Loading, Progress: functions.Progress{Percent: 40, ETA: 1500 * time.Millisecond}},
			`{"value":"loading","state":"loading","percent":40,"eta_s":2}`},
		"loading, for an unknown time": {&snapshot.Snapshot{State: functions.Downloading, Progress: functions.Progress{Percent: -1, ETA: -1},
			Forecast: functions.Forecast{P50: -1, P90: -1}}, `{"value":"loading","state":"staging"}`},
		"failed":         {&snapshot.Snapshot{Failure: failure}, `{"value":"unloaded","state":"failed","failed":true,"reason":"out of memory"}`},
		"failed earlier": {&snapshot.Snapshot{Failure: &snapshot.Failure{Reason: "x", Until: now}}, `{"value":"unloaded","state":"cold"}`},
	} {
		t.Run(name, func(t *testing.T) {
			it := Describe(c.f, modelA, "id", now)
			if got, err := json.Marshal(it.Status); err != nil || string(got) != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if it.ID != "id" || it.Object != "model" || it.OwnedBy != "a" || it.Created == 0 {
				t.Errorf("%+v", it)
			}
		})
	}
	if it := Describe(&snapshot.Snapshot{Remote: &functions.Remote{}}, modelA, "id", now); it.OwnedBy != "remote" {
		t.Errorf("%+v", it)
	}
}

func TestWithAdapter(t *testing.T) {
	f := &snapshot.Snapshot{State: functions.Ready, Replicas: []snapshot.Replica{{ID: "r", Adapters: []string{"has"}}}}
	model := Describe(f, modelA, "m", now)
	for _, c := range []struct {
		adapter  string
		onDemand bool
		want     string
	}{{"has", true, "loaded"}, {"other", true, "unloaded"}, {"other", false, "loaded"}} {
		it := model.WithAdapter(f, "m:"+c.adapter, "m", c.adapter, c.onDemand)
		if it.ID != "m:"+c.adapter || it.Parent != "m" || it.Status.Value != c.want || model.Parent != "" {
			t.Errorf("%+v: %+v", c, it)
		}
	}
}

func TestWriteList(t *testing.T) {
	var res httpserver.Response
	if err := WriteList(&res, []Item{Ready("r", "router")}, OpenAI); err != nil {
		t.Fatal(err)
	}
	const want = `{"object":"list","data":[{"id":"r","object":"model","created":1767225600,"owned_by":"router","status":{"value":"loaded","state":"ready"}}]}`
	if string(res.Body) != want {
		t.Errorf("%s, want %s", res.Body, want)
	}
}
