package simulate

import (
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

// BenchmarkDay simulates a day of 10,000 models on 1,000 GPUs: Zipf popularity
// (1/n^1.1), half the rate at night, checkpoints of 1 to 64 GiB, idle times of five
// minutes. THAW_DAY_REQUESTS (default 100) is how many thousand of its ten million
// requests are simulated, from the start of the day.
func BenchmarkDay(b *testing.B) {
	const day = 10_000_000
	n := 100
	if s := os.Getenv("THAW_DAY_REQUESTS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			b.Fatal(err)
		}
	}
	n *= 1000
	t, err := trace.Open("gen:models=10000,requests=10000000,diurnal=0.5,teams=20", trace.Options{Seed: 1})
	if err != nil {
		b.Fatal(err)
	}
	drawn := []functions.Bytes{1 << 30, 3 << 30, 8 << 30, 16 << 30, 28 << 30, 64 << 30}
	var ms []*functions.Model
	sizes := map[functions.Name]functions.Bytes{}
	for i, u := range t.Uses {
		size := drawn[uint64(i)*0x9e3779b97f4a7c15>>40%uint64(len(drawn))]
		ms = append(ms, model(u.Name.String(), func(s *functions.ModelSpec) {
			s.Resources.GPUMemory = size
			s.Scale.Max, s.Scale.Target = 8, 32
		}))
		sizes[u.Name] = size
	}
	some := func(yield func(trace.Request, error) bool) {
		left := n
		for r, err := range t.Read() {
			if left == 0 || !yield(r, err) {
				return
			}
			left--
		}
	}
	for b.Loop() {
		before := cpuTime(b)
		began := time.Now()
		r := runConfig(b, Config{Fleet: hosts(125, 8), Functions: ms, Sizes: sizes, Requests: some, Seed: 1})
		took := time.Since(began)
		b.ReportMetric(float64(r.Requests)/took.Seconds(), "requests/s")
		b.ReportMetric((cpuTime(b)-before).Seconds()/float64(r.Requests)*1e6, "cpu-us/request")
		b.ReportMetric(float64(peakMemory(b))/(1<<20), "peak-MiB")
		b.ReportMetric((cpuTime(b)-before).Seconds()/float64(r.Turns)*1e6, "cpu-us/turn")
		b.Logf("%.1f %% of the day, %.0f s, in %v, %v CPU; cold %d (%.3f), starts %d, evictions %d, thrash %d, turns %d, events %d, refused "+
			"%v, unfinished %d, warm %+v cold %+v, hours %+v", 100*float64(n)/day,
			r.Seconds, took, cpuTime(b)-before, r.Cold, r.ColdShare, r.Starts, r.Evictions, r.Thrash, r.Turns, r.Events, r.Refused, r.Unfinished,
			r.TTFTWarm, r.TTFTCold, r.GPUHours)
	}
}

func usage(b *testing.B) (u syscall.Rusage) {
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u
}

func cpuTime(b *testing.B) time.Duration {
	u := usage(b)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func peakMemory(b *testing.B) int64 { u := usage(b); return int64(u.Maxrss) << 10 }

// BenchmarkWarm measures one request for a model that is READY.
func BenchmarkWarm(b *testing.B) {
	ms := models(40, func(s *functions.ModelSpec) { s.Resources.GPUMemory = 20 << 30; s.Scale.Min = 1 })
	b.ReportAllocs()
	r := runConfig(b, Config{Fleet: hosts(2, 8), Functions: ms, Requests: poisson(ms, b.N, time.Duration(b.N)*10*time.Millisecond, 1),
		Seed: 1})
	b.ReportMetric(float64(r.Events)/float64(b.N), "events/op")
	b.ReportMetric(float64(r.Turns)/float64(b.N), "turns/op")
}
