package orchestrator

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// FuzzHeartbeat: no heartbeat makes the loop panic, publish a replica that is not
// READY, or grow without bound. Two documents follow each other while a request waits.
func FuzzHeartbeat(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"agent_id":"a"}`,
		`{"agent_id":"a","epoch":9,"models":[{"id":"r","team":"default","model":"x","state":"READY","inference_endpoint_url":"http://h:1","since":-9223372036854775808}]}`,
		`{"agent_id":"a","gpus":[{"index":0,"memory_total":"80Gi","health":"ok"},{"index":0,"memory_total":"1"}],"memory":{"total":"1Gi","used":"0"},"models":[{"id":"r","team":"default","model":"x","state":"DOWNLOADING","bytes":"2","total_bytes":"1","percent":1000,"phases":[{"phase":"stage","start":-1e300,"duration":1e300}],"gpus":[0,0,7,-1]}]}`,
		`{"agent_id":"a","models":[{"id":"r","team":"default","model":"x","state":"FAILED","error":"x\ny"},{"id":"r","team":"default","model":"x","state":"READY"},{"id":"","state":""},{"id":"q","team":"default","model":"unlisted","state":"READY"}]}`,
		`{"agent_id":"a","models":[{"id":"r","team":"default","model":"x","state":"UNLOADED","spec":{"source":"../..","resources":{"gpus":-5,"memory":"9223372036854775807"}}}]}`,
	} {
		f.Add([]byte(s), []byte(`{"agent_id":"a"}`))
		f.Add([]byte(`{"agent_id":"a","gpus":[{"index":0}]}`), []byte(s))
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		d := newFakePath()
		check := func(p snapshot.Snapshot) {
			for _, r := range p.Replicas {
				if r.Endpoint == "" {
					t.Fatalf("a replica without an endpoint: %+v", p)
				}
			}
			if p.Progress.Percent < -1 || p.Progress.Percent > 100 || p.Progress.ETA < -1 {
				t.Fatalf("progress %+v", p.Progress)
			}
		}
		s := New(Options{Epoch: 1, Catalog: &fakeCatalog{models: []*functions.Model{model("x"), model("y")}}})
		d.setLoop(s)
		s.Attach(d)
		ctx, cancel := context.WithCancel(context.Background())
		defer s.commands.running.Wait()
		defer cancel()
		h := newFakeAgent("a", 1)
		h.refuse = errVanished
		d.ask(s, fname("x"), 1)
		for _, doc := range [][]byte{one, two, one} {
			var hb functions.Heartbeat
			if json.Unmarshal(doc, &hb) != nil {
				continue
			}
			s.Heartbeat(hb, h)
			s.Turn(ctx)
			for _, p := range []string{"x", "y"} {
				check(d.snapshot(fname(p)))
			}
			for _, c := range s.ColdStarts(0) {
				if c.Total < 0 || c.Total > time.Hour.Seconds() {
					t.Fatalf("timeline %+v", c)
				}
			}
			s.Replicas()
			s.Nodes()
			if _, err := json.Marshal(s.ColdStarts(0)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
