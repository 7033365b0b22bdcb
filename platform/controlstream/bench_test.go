package controlstream

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// counted is a connection that counts its bytes and writes.
type counted struct {
	net.Conn
	read, wrote, writes *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

func (c counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	n, err := c.Conn.Write(b)
	c.wrote.Add(int64(n))
	return n, err
}

// bell is a feed and a waker that signal each call.
type bell struct {
	*feed
	rang chan time.Time
}

func (b bell) Publish(fs ...snapshot.Snapshot) { b.rang <- time.Now(); b.feed.Publish(fs...) }

type ringing struct{ rang chan time.Time }

func (r ringing) Wake(functions.Name) string                   { r.rang <- time.Now(); return "" }
func (r ringing) Demand(...activator.Demand)                   {}
func (r ringing) Nudge(functions.Name)                         {}
func (r ringing) ReportFailure(functions.Name, string, string) {}
func (r ringing) heard(b *testing.B, what string) time.Time    { return awaited(b, what, r.rang) }

func awaited(b *testing.B, what string, c <-chan time.Time) time.Time {
	select {
	case t := <-c:
		return t
	case <-time.After(30 * time.Second):
		b.Fatal("never: " + what)
		return time.Time{}
	}
}

// big returns a snapshot of a realistic size: with a model, a cold start and a forecast.
func big(ready bool) snapshot.Snapshot {
	m := functions.NewModel()
	m.Metadata.Namespace, m.Metadata.Name = "a", "m"
	m.Spec.Source, m.Spec.Engine = "az://account/models/llama-3.1-8b", functions.EngineVLLM
	m.Spec.Args = []string{"--max-model-len", "8192", "--gpu-memory-utilization", "0.9"}
	f := snapshot.Snapshot{
		Name: name("m"), Model: m, State: functions.Loading,
		Progress:  functions.Progress{State: functions.Loading, Percent: 40, Bytes: 6 << 30, Total: 16 << 30, ETA: 3 * time.Second},
		ColdStart: &functions.Timeline{ID: "cs-0123456789ab", Function: "a/m", State: functions.Loading, Began: time.Now(), Total: 4.2},
		Forecast:  functions.Forecast{P50: 9 * time.Second, P90: 14 * time.Second, Phases: map[functions.Phase]time.Duration{functions.PhaseStage: time.Second, functions.PhaseLoad: 4 * time.Second}},
	}
	for _, p := range []functions.Phase{functions.PhaseQueue, functions.PhasePlace, functions.PhaseStage, functions.PhaseSpawn, functions.PhaseLoad, functions.PhaseWarmup} {
		f.ColdStart.Phases = append(f.ColdStart.Phases, functions.Span{Phase: p, Start: 1, Duration: 0.5})
	}
	if ready {
		f.State = functions.Ready
		f.Replicas = []snapshot.Replica{{ID: "m-0123456789ab", Endpoint: "http://10.244.1.17:8080", Slots: 16}}
	}
	return f
}

// report logs the median and the slowest of the measured times.
func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "µs-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "µs-p99")
}

// linked connects n activators to a hub over loopback TCP.
func linked(b *testing.B, n int) (h *Hub, w ringing, as []*Activator, fs []bell, read, wrote, writes *atomic.Int64) {
	w = ringing{make(chan time.Time, 1<<16)}
	read, wrote, writes = new(atomic.Int64), new(atomic.Int64), new(atomic.Int64)
	h = NewHub(HubOptions{Tokens: tokens(secret), Waker: w})
	h.Publish(big(false))
	addr := listen(b, h)
	for i := range n {
		f := bell{newFeed(), make(chan time.Time, 1<<16)}
		a := NewActivator(ActivatorOptions{ClientOptions: ClientOptions{Addr: addr, Token: secret, Hello: Hello{ID: fmt.Sprint(i)},
			Dial: func(ctx context.Context, addr string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
				return counted{c, read, wrote, writes}, err
			}}})
		attach(a, f)
		start(b, a.Run)
		<-a.Synced()
		awaited(b, "the first picture", f.rang)
		as, fs = append(as, a), append(fs, f)
	}
	return h, w, as, fs, read, wrote, writes
}

// BenchmarkReady measures the time from Publish of a READY replica until the last activator
// publishes it, and the bytes to each.
func BenchmarkReady(b *testing.B) {
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprint("activators=", n), func(b *testing.B) {
			h, _, _, fs, read, _, _ := linked(b, n)
			pictures := []snapshot.Snapshot{big(true), big(false)}
			pictures[1].Model = pictures[0].Model
			h.Publish(pictures[1])
			for _, f := range fs {
				awaited(b, "the model", f.rang)
			}
			took := make([]time.Duration, 0, b.N)
			before := read.Load()
			for i := 0; b.Loop(); i++ {
				began := time.Now()
				h.Publish(pictures[i%2])
				last := began
				for _, f := range fs {
					if t := awaited(b, "READY", f.rang); t.After(last) {
						last = t
					}
				}
				took = append(took, last.Sub(began))
			}
			b.ReportMetric(float64(read.Load()-before)/float64(len(took)*n), "B/picture")
			report(b, took)
		})
	}
}

// BenchmarkWake measures the time from an activator's wake until the loop is woken, and the
// bytes of the wake with its demand.
func BenchmarkWake(b *testing.B) {
	_, w, as, fs, _, wrote, writes := linked(b, 1)
	took := make([]time.Duration, 0, b.N)
	bytes, frames := wrote.Load(), writes.Load()
	for i := 0; b.Loop(); i++ {
		fs[0].want(activator.Demand{Name: name("m"), Queued: i + 1, Oldest: time.Now()})
		began := time.Now()
		as[0].Wake(name("m"))
		took = append(took, w.heard(b, "the wake").Sub(began))
	}
	b.ReportMetric(float64(wrote.Load()-bytes)/float64(len(took)), "B/wake")
	b.ReportMetric(float64(writes.Load()-frames)/float64(len(took)), "writes/wake")
	report(b, took)
}

// BenchmarkWarm measures the bytes that a request to a warm function costs its connection:
// it changes the demand twice, and frames of demand are at least demandPace apart.
func BenchmarkWarm(b *testing.B) {
	_, _, _, fs, _, wrote, writes := linked(b, 1)
	began, bytes, frames := time.Now(), wrote.Load(), writes.Load()
	for b.Loop() {
		fs[0].want(activator.Demand{Name: name("m"), Active: 1})
		fs[0].want(activator.Demand{Name: name("m"), LastEnd: began})
	}
	s := time.Since(began).Seconds()
	b.ReportMetric(float64(writes.Load()-frames)/s, "writes/s")
	b.ReportMetric(float64(wrote.Load()-bytes)/s, "B/s")
}

// BenchmarkWhole measures the first message of a connection, with ten thousand functions.
func BenchmarkWhole(b *testing.B) {
	var d Update
	d.FullSync = true
	for i := range 10_000 {
		f := big(false)
		f.Name.Name = fmt.Sprint("m", i)
		f.ColdStart, f.State = nil, functions.Unloaded
		d.Functions = append(d.Functions, f)
	}
	var size int
	for b.Loop() {
		size = len(recorded(b, d.pack(1, models{}, moment)))
		var f updateFrame
		if err := played(recorded(b, d.pack(1, models{}, moment)), maxDown).read(&f); err != nil {
			b.Fatal(err)
		}
		f.unpack(models{}, moment)
	}
	b.ReportMetric(float64(size)/10_000, "B/function")
}
