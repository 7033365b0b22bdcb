package compose

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BenchmarkRun measures the package's own cost of a whole run: the calls answer at once.
// cpu-ns/call is the time of all processors per call made, collecting garbage included.
func BenchmarkRun(b *testing.B) {
	long := strings.Repeat("An answer of two thousand bytes. ", 60)
	for _, c := range []struct {
		pattern Pattern
		texts   map[string]string
	}{
		{Ensemble, map[string]string{"a": "42", "b": "42", "c": "42"}},
		{Ensemble, map[string]string{"a": long, "b": long, "c": long, "j": long}},
		{Debate, map[string]string{"a": long + "a", "b": long + "b", "c/member/1": long + "c", "c/member/2": long + "d", "c/member/3": long + "e", "j": long}},
		{Maestro, everyPattern[Maestro]},
		{Graph, map[string]string{"j/coordinator/1": decomposition("p", "q", "r<p", "s<p,q", "t", "u<t", "v<s", "w<u", "x<v,w", "y", "z", "o<z"), "a": long, "b": long, "c": long, "j": long}},
	} {
		texts := replies(c.texts)
		ask := func(_ context.Context, q Call) (Reply, error) { return texts(q) }
		ready := func(_, want []string) []Group { return []Group{{Warm: want}} }
		in := question("A question of one line?")
		name := string(c.pattern)
		if len(c.texts) == 3 {
			name += "-agreed"
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			calls, before := 0, cpuTime(b)
			plan := planOf(c.pattern)
			plan.Mark = nil
			for b.Loop() {
				result, err := Run(b.Context(), plan, in, ask, ready, nil)
				if err != nil {
					b.Fatal(err)
				}
				calls += len(result.Calls)
			}
			b.ReportMetric(float64(calls)/float64(b.N), "calls/op")
			b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(calls), "cpu-ns/call")
		})
	}
}

// cpuTime returns the processor time that the process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkNormalForm measures the comparison of one answer.
func BenchmarkNormalForm(b *testing.B) {
	for _, text := range []string{"**Forty-two**.", `{"answer":42,"why":["six","times","seven"]}`, strings.Repeat("long ", 400)} {
		b.Run(fmt.Sprint(len(text)), func(b *testing.B) {
			for b.Loop() {
				normalForm(text)
			}
		})
	}
}
