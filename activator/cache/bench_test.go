package cache

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// cpuTime is what the process has used: other programs share the machine.
func cpuTime() time.Duration {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkHit is the reading of a body of 4 KiB, its lookup, and the replay of 256 tokens: the
// goal is 30 µs of CPU.
func BenchmarkHit(b *testing.B) {
	s := NewStore(64<<20, nil)
	m := modelOf("m")
	m.Model.Spec.Cache.Exact = &functions.ExactCache{TTL: functions.Duration(time.Hour)}
	prompt := strings.Repeat("The quick brown fox said \\\"hello\\\" to the lazy dog, twice.\\n", 66)
	var answer strings.Builder
	for i := range 256 {
		reason := "null"
		if i == 255 {
			reason = `"stop"`
		}
		fmt.Fprintf(&answer, `data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":"token "},"logprobs":null,"finish_reason":%s}]}`+"\n\n", reason)
	}
	answer.WriteString(openai.Done)
	for _, stream := range []bool{false, true} {
		b.Run(fmt.Sprintf("stream=%v", stream), func(b *testing.B) {
			body := fmt.Appendf(nil, `{"model":"m","stream":%v,"temperature":0,"messages":[{"role":"user","content":"%s"}]}`, stream, prompt)
			look := func(stream bool) *Use {
				env, err := openai.Peek(body)
				if err != nil {
					b.Fatal(err)
				}
				u, e := s.Look(Request{Team: "a", Function: m, Path: pathChat, Stream: stream, Envelope: &env, Body: body, Now: time.Unix(0, 0)})
				if e != nil {
					b.Fatal(e)
				}
				return u
			}
			u := look(true)
			u.End(200, used)
			s.keep(u, []byte(answer.String()))
			b.ReportAllocs()
			began := cpuTime()
			for b.Loop() {
				u := look(stream)
				var res httpserver.Response
				u.Replay(&res, "0123456789abcdef0123456789abcdef")
				if len(res.Body) < 1000 {
					b.Fatal("no answer")
				}
			}
			b.ReportMetric(float64((cpuTime()-began).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}
