package simulate

import (
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// BenchmarkDay is a day of 10,000 models on 1,000 GPUs. THAW_DAY_REQUESTS is how
// many requests it has, in thousands; 100 unless said, and 10000 for the figure.
func BenchmarkDay(b *testing.B) {
	n := 100
	if s := os.Getenv("THAW_DAY_REQUESTS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			b.Fatal(err)
		}
	}
	n *= 1000
	over := time.Duration(float64(24*time.Hour) * float64(n) / 10e6)
	if os.Getenv("THAW_DAY_WHOLE") != "" {
		over = 24 * time.Hour
	}
	ms := models(10_000, func(s *functions.ModelSpec) { s.Resources.GPUMemory = 40 << 30 })
	for b.Loop() {
		before := cpu(b)
		began := time.Now()
		r := run(b, Config{Fleet: hosts(125, 8), Functions: ms, Requests: poisson(ms, n, over, 1), Seed: 1})
		took := time.Since(began)
		b.ReportMetric(float64(r.Requests)/took.Seconds(), "requests/s")
		b.ReportMetric((cpu(b)-before).Seconds()/float64(r.Requests)*1e6, "cpu-us/request")
		b.ReportMetric(float64(peak(b))/(1<<20), "peak-MiB")
		b.ReportMetric(took.Seconds()/float64(r.Turns)*1e6, "us/turn")
		b.Logf("%v for %v; cold %d (%.3f), starts %d, evictions %d, turns %d, events %d, refused %v, unfinished %d, ttft %+v", took, over, r.Cold, r.ColdShare, r.Starts, r.Evictions, r.Turns, r.Events, r.Refused, r.Unfinished, r.TTFT)
	}
}

func usage(b *testing.B) (u syscall.Rusage) {
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u
}

func cpu(b *testing.B) time.Duration {
	u := usage(b)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func peak(b *testing.B) int64 { u := usage(b); return int64(u.Maxrss) << 10 }

// BenchmarkWarm is what a request costs that finds its model READY.
func BenchmarkWarm(b *testing.B) {
	ms := models(40, func(s *functions.ModelSpec) { s.Resources.GPUMemory = 20 << 30; s.Scale.Min = 1 })
	b.ReportAllocs()
	r := run(b, Config{Fleet: hosts(2, 8), Functions: ms, Requests: poisson(ms, b.N, time.Duration(b.N)*10*time.Millisecond, 1), Seed: 1})
	b.ReportMetric(float64(r.Events)/float64(b.N), "events/op")
	b.ReportMetric(float64(r.Turns)/float64(b.N), "turns/op")
}
