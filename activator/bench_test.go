package activator

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/browser"
	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/telemetry"
)

// prompt is a body of 1.2 KiB.
func prompt(model string, stream bool) string {
	s := ""
	if stream {
		s = `"stream":true,`
	}
	return `{"model":"` + model + `",` + s + `"messages":[{"role":"system","content":"` + strings.Repeat("You are kind. ", 20) + `"},{"role":"user","content":"` + strings.Repeat("hello world ", 70) + `"}]}`
}

// BenchmarkDecide is the whole decision for a warm request: peek, key, limits,
// snapshot, admission, with 10,000 functions of two replicas each. It reports
// the p99.
func BenchmarkDecide(b *testing.B) {
	keys, err := auth.Open(filepath.Join(b.TempDir(), "keys.json"))
	if err != nil {
		b.Fatal(err)
	}
	key, _, _ := keys.Create("default", "", false)
	limits := &ratelimit.Limits{}
	limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "default"}, Spec: functions.TeamSpec{Limits: functions.Limits{RequestsPerMinute: 1e9, Concurrent: 1e6}}}})
	a := New(Options{Waker: &testEnv{}, Keys: keys, Limits: limits})
	var fs []snapshot.Snapshot
	for i := range 10000 {
		fs = append(fs, readyAt(testFunction(fmt.Sprintf("model-%d", i)), 8, fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)))
	}
	a.Publish(fs...)
	bodies := make([][]byte, 64)
	for i := range bodies {
		bodies[i] = []byte(prompt(fmt.Sprintf("model-%d", i*151), i%2 == 0))
	}
	took := make([]time.Duration, 0, 1<<20)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		began := time.Now()
		id, _ := keys.Lookup(key)
		env, err := openai.Peek(bodies[i%len(bodies)])
		if err != nil {
			b.Fatal(err)
		}
		name, _ := functions.ParseName(env.Model, id.Team)
		e := a.names.table.Lookup(name)
		lease, _ := limits.Admit(id.Team, began)
		w := admission.Request{Team: id.Team, Bytes: int64(len(bodies[0])), Key: admission.AffinityKey(admission.Opening(bodies[i%len(bodies)]))}
		if w.Enter(&e.Data.queue, began) != admission.Admitted {
			b.Fatal("not admitted")
		}
		if len(took) < cap(took) {
			took = append(took, time.Since(began))
		}
		w.Leave(began)
		lease.End(0, began)
		i++
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}

func BenchmarkVerdict(b *testing.B) {
	f := readyAt(testFunction("tiny"), 8, "a", "b")
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		if admission.Decide(&f, admission.Load{FreeSlots: 16}, admission.ClientTimeouts{}, now).Verdict != admission.Serve {
			b.Fatal()
		}
	}
}

// BenchmarkWarm is a warm request over real sockets: the fiber server, the data
// path with key, metrics and log, the upstream client, and a raw engine and
// client that cost little. Time and allocations are of all of them together.
func BenchmarkWarm(b *testing.B) {
	for _, stream := range []bool{false, true} {
		b.Run(fmt.Sprintf("stream=%v", stream), func(b *testing.B) { benchWarm(b, stream, "") })
	}
	// The official clients' fields let a retry join the request.
	b.Run("official", func(b *testing.B) {
		benchWarm(b, false, "X-Stainless-Retry-Count: 0\r\nX-Stainless-Read-Timeout: 600\r\n")
	})
}

func benchWarm(b *testing.B, stream bool, fields string) {
	keys, err := auth.Open(filepath.Join(b.TempDir(), "keys.json"))
	if err != nil {
		b.Fatal(err)
	}
	key, _, _ := keys.Create("default", "", false)
	a := New(Options{
		Keys: keys, Engines: upstream.New(upstream.Options{}), Metrics: telemetry.New(),
		Log: slog.New(slog.NewJSONHandler(io.Discard, nil)), Waker: &testEnv{},
	})
	engine, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer engine.Close()
	var answer strings.Builder
	if stream {
		answer.WriteString(chunkHead)
		for range 62 {
			fmt.Fprintf(&answer, "%x\r\n%s\r\n", len(event2), event2)
		}
		fmt.Fprintf(&answer, "%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", len(event3), event3, len(eventDone), eventDone)
	} else {
		body := `{"id":"x","choices":[{"message":{"content":"` + strings.Repeat("word ", 280) + `"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`
		fmt.Fprintf(&answer, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	raw := []byte(answer.String())
	go func() {
		for {
			c, err := engine.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReader(c)
				for readRaw(br) {
					if _, err := c.Write(raw); err != nil {
						return
					}
				}
			}()
		}
	}()
	a.Publish(readyAt(testFunction("tiny"), 64, engine.Addr().String()))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := httpserver.NewFiberServer(httpserver.Options{Handler: browser.New(true, nil, nil).Wrap(a.Serve)})
	go srv.Serve(ln)
	defer srv.Shutdown(context.Background())
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	body := prompt("tiny", stream)
	send := []byte(fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAuthorization: "+
		"Bearer %s\r\n%sContent-Length: %d\r\n\r\n%s", key, fields, len(body), body))
	br := bufio.NewReader(c)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(send); err != nil {
			b.Fatal(err)
		}
		if !readRaw(br) {
			b.Fatal("no answer")
		}
	}
}

// BenchmarkRouted is a whole request without sockets and without an engine: an exact hit for a
// model by its name, and through Routers that choose it by the rules alone and by the score.
func BenchmarkRouted(b *testing.B) {
	keys, err := auth.Open(filepath.Join(b.TempDir(), "keys.json"))
	if err != nil {
		b.Fatal(err)
	}
	key, _, _ := keys.Create("default", "", false)
	a := New(Options{
		Keys: keys, Engines: upstream.New(upstream.Options{}), Metrics: telemetry.New(), Cache: cache.NewStore(1<<20, telemetry.New()),
		Log: slog.New(slog.NewJSONHandler(io.Discard, nil)), Waker: &testEnv{},
	})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, jsonAnswer)
	}))
	defer engine.Close()
	f := testFunction("tiny")
	f.Model.Spec.Cache.Exact = &functions.ExactCache{TTL: functions.Duration(time.Hour), AnyTemperature: true}
	a.Publish(readyAt(f, 64, strings.TrimPrefix(engine.URL, "http://")))
	yes, half := true, 0.5
	rules := []functions.Rule{
		{Name: "extraction", When: functions.When{StructuredOutput: &yes}, To: []string{"tiny"}},
		{Name: "code", When: functions.When{Code: &yes}, To: []string{"tiny"}},
		{Name: "reasoning", When: functions.When{ComplexityAbove: &half}, To: []string{"tiny"}},
		{Name: "general", To: []string{"tiny"}},
	}
	byRules, byScore := testRouter("tiny"), testRouter("tiny")
	byRules.Metadata.Name, byRules.Spec.Rules = "rules", slices.Delete(slices.Clone(rules), 2, 3)
	byScore.Metadata.Name, byScore.Spec.Rules = "score", rules
	a.SetRouters([]*functions.Router{byRules, byScore}, nil)
	for _, model := range []string{"tiny", "rules", "score"} {
		b.Run(model, func(b *testing.B) {
			body := []byte(`{"model":"` + model + `","messages":[{"role":"system","content":"` + strings.Repeat("You are a helpful assistant. ", 36) +
				`"},{"role":"user","content":"` + strings.Repeat("The engine starts when a request comes in, and it stops after some minutes without one. Why does "+
				"the first answer of the morning take longer, and what would you change? ", 18) + `"}],"temperature":0.7,"max_tokens":64}`)
			fields := []httpserver.Field{{Name: "Content-Type", Value: "application/json"}, {Name: "Authorization", Value: "Bearer " + key}}
			ask := func() {
				var res httpserver.Response
				a.Serve(httpserver.NewRequest(nil, "POST", chatPath, fields, body, &httpserver.Context{}, func() bool { return false }), &res)
				if res.Status > 200 || len(res.Body) < 10 {
					b.Fatal(res.Status, string(res.Body))
				}
			}
			ask()
			b.ReportAllocs()
			began := cpuTime(b)
			for b.Loop() {
				ask()
			}
			b.ReportMetric(float64((cpuTime(b)-began).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime is what the process has used: other programs share the machine.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// readRaw reads one message, by length or chunked, without keeping it.
func readRaw(br *bufio.Reader) bool {
	length, chunked := 0, false
	for {
		l, err := br.ReadSlice('\n')
		if err != nil {
			return false
		}
		if len(l) == 2 {
			break
		}
		if v, ok := cutFieldValue(l, "content-length:"); ok {
			length, _ = strconv.Atoi(v)
		}
		if _, ok := cutFieldValue(l, "transfer-encoding:"); ok {
			chunked = true
		}
	}
	for chunked {
		l, err := br.ReadSlice('\n')
		if err != nil {
			return false
		}
		n, _ := strconv.ParseInt(strings.TrimSpace(string(l)), 16, 64)
		br.Discard(int(n) + 2)
		if n == 0 {
			return true
		}
	}
	_, err := br.Discard(length)
	return err == nil
}

func cutFieldValue(l []byte, name string) (string, bool) {
	if len(l) > len(name) && strings.EqualFold(string(l[:len(name)]), name) {
		return strings.TrimSpace(string(l[len(name):])), true
	}
	return "", false
}
