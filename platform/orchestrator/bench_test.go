package orchestrator

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// readyMarker is a data path that records when a replica was published.
type readyMarker struct {
	ready chan time.Time
	seen  map[functions.Name]bool
}

func (m *readyMarker) Publish(fs ...snapshot.Snapshot) {
	for i := range fs {
		if len(fs[i].Replicas) > 0 && !m.seen[fs[i].Name] {
			m.seen[fs[i].Name] = true
			m.ready <- time.Now()
		}
	}
}
func (m *readyMarker) Remove(...functions.Name) {}
func (m *readyMarker) AbortThrough(string)      {}

// BenchmarkReady measures from the agent's heartbeat with a READY replica to the
// snapshot published to the data path, by the number of functions in the catalogue.
// In each round the replica is one that this server did not start (adoption takes the
// same path).
func BenchmarkReady(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("functions=%d", n), func(b *testing.B) {
			c := &fakeCatalog{}
			for i := range n {
				c.models = append(c.models, model(fmt.Sprint("m", i)))
			}
			m := &readyMarker{ready: make(chan time.Time, 1), seen: map[functions.Name]bool{}}
			s := New(Options{Epoch: 1, Path: m, Catalog: c, Here: "here"})
			s.Demand(Demand{Name: fname("m0"), Queued: 1, Oldest: time.Now()})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			defer func() { cancel(); <-done }()
			node := newFakeAgent("here", 1)
			hb := functions.Heartbeat{AgentID: "here"}
			s.Heartbeat(hb, node)
			var took []time.Duration
			i := 1
			for b.Loop() {
				if i == n {
					b.Skip("more rounds than functions: say -benchtime 50x")
				}
				m := functions.ReplicaStatus{ID: fmt.Sprint("r", i), Team: "default", Model: fmt.Sprint("m", i), State: functions.Ready,
					Endpoint: "http://127.0.0.1:1"}
				hb.Models = append(slices.Clone(hb.Models), m)
				<-time.After(time.Millisecond) // the loop is at rest
				at := time.Now()
				s.Heartbeat(hb, node)
				took = append(took, (<-markOf(s)).Sub(at))
				i++
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
		})
	}
}

func markOf(s *Orchestrator) chan time.Time { return s.loop.publisher.path.(*readyMarker).ready }
