package activator

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var updateEnds = flag.Bool("update", false, "write testdata/ends.txt anew: read what changed in it")

// scene is a request, or a few, from its beginning to its end.
type scene struct {
	name   string
	change func(*Options)
	play   func(s *stage)
	beside bool // its requests run beside each other: which report of demand has what is chance
}

// padded has plain requests padded after a time, and again every other; 0 is the default.
func padded(after, every time.Duration) func(*Options) {
	return func(o *Options) { o.Hold, o.Timing.PadAfter, o.Timing.PadEvery = HoldPad, after, every }
}

// stage is what a scene sees of the world.
type stage struct {
	*testEnv
	began   time.Time
	answers []moment
}

// moment is a line, and when it was written.
type moment struct {
	at   time.Duration
	line string
}

// inOrder are the lines by time, and those of one time by their text.
func inOrder(all []moment) (lines []string) {
	slices.SortStableFunc(all, func(a, b moment) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(anID.ReplaceAllString(a.line, ""), anID.ReplaceAllString(b.line, "")))
	})
	for _, m := range all {
		lines = append(lines, m.line)
	}
	return lines
}

// TestEnds: what is left of a request at its end, for each way to end: the answer with its
// fields, what the engines got, the log, the metrics, and the calls of the platform.
// testdata/ends.txt has all of it.
func TestEnds(t *testing.T) {
	var all strings.Builder
	got := map[string]string{}
	for _, s := range slices.Concat(scenes, moreScenes, rareScenes, stepScenes, composedScenes, wideScenes, oddScenes) {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { got[s.name] = playScene(t, s) })
		})
		fmt.Fprintf(&all, "=== %s\n%s", s.name, got[s.name])
	}
	file := filepath.Join("testdata", "ends.txt")
	if *updateEnds {
		if err := os.WriteFile(file, []byte(all.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for part := range strings.SplitSeq(string(b), "=== ") {
		name, text, _ := strings.Cut(part, "\n")
		want[name] = text
	}
	for name, text := range got {
		if text != want[name] {
			t.Errorf("%s:\n%s", name, changedLines(want[name], text))
		}
	}
}

// changedLines are those of only one of two texts.
func changedLines(want, got string) string {
	var b strings.Builder
	for sign, of := range map[string][2]string{"-": {want, got}, "+": {got, want}} {
		for line := range strings.Lines(of[0]) {
			if !slices.Contains(slices.Collect(strings.Lines(of[1])), line) {
				b.WriteString(sign + line)
			}
		}
	}
	return b.String()
}

func playScene(t *testing.T, sc scene) string {
	s := &stage{began: time.Now(), testEnv: newTestEnv(t, func(o *Options) {
		if sc.change != nil {
			sc.change(o)
		}
	})}
	sc.play(s)
	synctest.Wait()
	lines := inOrder(s.answers)
	for _, addr := range slices.Sorted(maps.Keys(s.up)) {
		for _, r := range s.up[addr].requests() {
			var head []string
			for _, name := range slices.Sorted(maps.Keys(r.head)) {
				if name != "Content-Length" && name != "Accept-Encoding" {
					head = append(head, fmt.Sprintf("%s=%q", strings.ToLower(name), strings.Join(r.head[name], "|")))
				}
			}
			body := usual.Replace(r.body)
			if len(body) > 600 { // what the coordinator of a Composition is asked has random marks
				body = fmt.Sprintf("(%d bytes)", len(body))
			}
			lines = append(lines, fmt.Sprintf("engine %s: %s %s\n\t%s", addr, r.path, strings.Join(head, " "), body))
		}
	}
	var log []moment
	for line := range strings.Lines(s.logs.String()) {
		line = strings.TrimSpace(line)
		at, rest, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		when, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			t.Fatal(err)
		}
		took := when.Sub(s.began).Round(time.Millisecond)
		log = append(log, moment{took, fmt.Sprintf("log %v %s", took, strings.Replace(rest, "level=INFO msg=request ", "", 1))})
	}
	lines = append(lines, inOrder(log)...)
	lines = append(lines, series(t, s.testEnv)...)
	if n := s.count(&s.wakes); n > 0 {
		lines = append(lines, fmt.Sprintf("wakes %d", n))
	}
	if n := s.count(&s.nudges); n > 0 {
		lines = append(lines, fmt.Sprintf("nudges %d", n))
	}
	if n := s.count(&s.firstTokens); n > 0 {
		lines = append(lines, fmt.Sprintf("first tokens %d", n))
	}
	for _, f := range s.engineRequests() {
		lines = append(lines, "reported "+f)
	}
	for _, rec := range slices.Backward(s.act.Decisions().Newest("", 100)) {
		b, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, "decision "+aScore.ReplaceAllString(string(b), `"complexity":(a score)`))
	}
	time.Sleep(time.Minute) // what the scene's platform does has an end
	synctest.Wait()
	if !sc.beside {
		lines = append(lines, s.platformCalls()...)
	}
	for _, addr := range slices.Sorted(maps.Keys(s.up)) {
		if n := s.act.Traffic("http://" + addr).InFlight; len(s.up[addr].conns) > 0 || n > 0 {
			lines = append(lines, fmt.Sprintf("engine %s: %d connections are open a minute later, %d in use", addr, len(s.up[addr].conns), n))
		}
	}
	return readable(strings.Join(lines, "\n")) + "\n"
}

// platformCalls are the calls of the platform, without the reports of demand: which of several at
// one time are sent depends on chance.
func (s *stage) platformCalls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var calls []moment
	for _, m := range s.calls {
		calls = append(calls, moment{m.at, fmt.Sprintf("platform %v %s", m.at.Round(time.Millisecond), m.line)})
	}
	return inOrder(calls)
}

// series are all metrics with a value: counters and gauges, and the sums of histograms.
func series(t *testing.T, w *testEnv) (lines []string) {
	families, err := w.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if h := m.GetHistogram(); h != nil && h.GetSampleCount() > 0 {
				value = h.GetSampleSum()
				lines = append(lines, fmt.Sprintf("%s%s %d times, %.6g", f.GetName(), labelsOf(m.GetLabel()), h.GetSampleCount(), value))
			} else if value != 0 {
				lines = append(lines, fmt.Sprintf("%s%s %.6g", f.GetName(), labelsOf(m.GetLabel()), value))
			}
		}
	}
	return lines
}

func labelsOf[L interface{ GetName() string }](all []L) string {
	var b strings.Builder
	for _, l := range all {
		fmt.Fprintf(&b, " %s=%s", l.GetName(), any(l).(interface{ GetValue() string }).GetValue())
	}
	return b.String()
}

var (
	anID = regexp.MustCompile(`\b[0-9a-f]{32}\b`)
	// aScore depends on how the categories are fitted.
	aScore = regexp.MustCompile(`"complexity":[0-9.e-]+`)
	// aRecord is what a Composition says of its calls, whose order varies.
	aRecord = regexp.MustCompile(`"thaw":\{.*\}`)
	// usual has short names for what comes often.
	usual = strings.NewReplacer(jsonAnswer, "(an answer)", plainRequest, "(a plain request)", streamRequest, "(a streamed request)",
		event1, "(1)", event2, "(2)", event3, "(finish)",
		eventUsage, "(usage)", eventDone, "(end mark)")
)

// readable gives ids the numbers of their order.
func readable(text string) string {
	ids := map[string]string{}
	return anID.ReplaceAllStringFunc(text, func(id string) string {
		if ids[id] == "" {
			ids[id] = fmt.Sprint("ID", len(ids)+1)
		}
		return ids[id]
	})
}

// see notes an answer.
func (s *stage) see(r result) result {
	var head []string
	spread := strings.Contains(r.body, `"eta_s"`) || strings.Contains(r.body, `"queue_full"`) || strings.Contains(r.body, `"gpu_quota_exceeded"`)
	for _, name := range slices.Sorted(maps.Keys(r.head)) {
		switch {
		case name == "Retry-After" && spread:
			head = append(head, "retry-after=spread")
		case name == "Content-Length" && strings.HasPrefix(r.head.Get("Content-Type"), "text/event-stream"): // it came in one instant
		case name != "Date":
			head = append(head, fmt.Sprintf("%s=%q", strings.ToLower(name), strings.Join(r.head[name], "|")))
		}
	}
	line := fmt.Sprintf("after %v %d %s", r.took.Round(time.Millisecond), r.status, strings.Join(head, " "))
	if r.err != nil {
		line += "\n\terror " + r.err.Error()
	}
	if n := len(r.body) - len(strings.TrimLeft(r.body, "\n")); n > 0 {
		line += fmt.Sprintf("\n\t(%d newlines)", n)
	}
	for l := range strings.Lines(usual.Replace(aRecord.ReplaceAllString(r.body, `"thaw":(a record)`))) {
		if l = strings.TrimRight(l, "\n"); l != "" {
			line += "\n\t" + l
		}
	}
	s.mu.Lock()
	s.answers = append(s.answers, moment{time.Since(s.began), line})
	s.mu.Unlock()
	return r
}

// chat is a chat completion to the end.
func (s *stage) chat(body string, head ...string) result {
	return s.see(s.post("/v1/chat/completions", body, head...))
}

// leaves is a chat completion whose client leaves after a time.
func (s *stage) leaves(after time.Duration, body string, head ...string) {
	s.leavesAt("/v1/chat/completions", after, body, head...)
}

func (s *stage) leavesAt(path string, after time.Duration, body string, head ...string) {
	ctx, cancel := context.WithTimeout(s.t.Context(), after)
	defer cancel()
	s.see(s.do(ctx, "POST", path, body, head...))
	time.Sleep(time.Millisecond)
}

// beside runs a request beside others; the function that it returns waits for it.
func (s *stage) beside(f func()) (wait func()) {
	var g sync.WaitGroup
	g.Go(f)
	time.Sleep(10 * time.Millisecond)
	return g.Wait
}

// ready publishes tiny, READY at engines that answer after a second.
func (s *stage) ready(slots int, addrs ...string) {
	for _, a := range addrs {
		s.engineAt(a, after(time.Second, goodAnswer))
	}
	s.act.Publish(readyAt(testFunction("tiny"), slots, addrs...))
}

type answering = func(c net.Conn, r *http.Request, body string) bool

// after is an engine that thinks before it answers.
func after(d time.Duration, then answering) answering {
	return func(c net.Conn, r *http.Request, body string) bool {
		time.Sleep(d)
		return then(c, r, body)
	}
}

// says is an engine that answers with a status, a JSON body, and lines of a head.
func says(status int, body string, head ...string) answering {
	return func(c net.Conn, _ *http.Request, _ string) bool {
		lines := ""
		for _, h := range head {
			lines += h + "\r\n"
		}
		head := fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n", status, lines, len(body))
		return writeString(c, head+body)
	}
}

// writes is an engine that writes pieces of a chunked stream, a second apart, and then what
// ends it; "" breaks the connection.
func writes(end string, pieces ...string) answering {
	return func(c net.Conn, _ *http.Request, _ string) bool {
		writeString(c, chunkHead)
		for _, p := range pieces {
			time.Sleep(time.Second)
			chunk(c, p)
		}
		return end != "" && writeString(c, end)
	}
}

// dies is an engine that breaks the connection.
func dies(net.Conn, *http.Request, string) bool { return false }
