package socket

import (
	"fmt"

	"github.com/thaw-dev/thaw/bench/report"
)

// Kind is the kind of the result's document.
const Kind = "SocketBench"

// Names of the servers.
const (
	Thaw       = "thaw"
	EchoServer = "echo"
)

// Result is the benchmark's document; skipped parts are absent.
type Result struct {
	report.Provenance
	Decisions []Decision   `json:"decisions,omitempty"`
	Accuracy  []Accuracy   `json:"accuracy,omitempty"`
	Missing   []string     `json:"missing,omitempty"`
	Idle      []Idle       `json:"idle,omitempty"`
	Typing    []Typing     `json:"typing,omitempty"`
	Submits   []Submit     `json:"submits,omitempty"`
	Cold      *Cold        `json:"cold,omitempty"`
	Load      string       `json:"load_average"` // of the machine over a minute, at the start
	Goals     report.Goals `json:"goals"`
}

// idleGoal is the largest memory of an idle socket, in bytes.
const idleGoal = 40 << 10

// checkGoals compares the result with the goals.
func (r *Result) checkGoals() {
	for _, d := range r.Decisions {
		if d.Text == shortText {
			r.Goals.Add(d.P99 < 50e-6, "prediction at a word, 150 intents, processor time, p99", "under 50 µs", report.Millis(d.P99))
		}
	}
	for i, want := range []float64{0.90, 0.78} {
		if i < len(r.Accuracy) {
			x := r.Accuracy[i]
			r.Goals.Add(x.Right >= want, "right intent, "+x.Fitted, fmt.Sprintf("at least %.0f %%", 100*want), percent(x.Right))
			near := x.rightNear()
			r.Goals.Add(near >= 0.70 && near <= 0.80, "right of those with a confidence of 0.65 to 0.85, "+x.Fitted, "70 to 80 %", percent(near))
		}
	}
	for i, x := range r.Idle {
		last := i+2 >= len(r.Idle)
		if x.Server != Thaw {
			continue
		}
		if last {
			r.Goals.Add(x.Typed <= idleGoal, fmt.Sprintf("memory of an idle socket that has typed, %d sockets", x.Sockets), "at most 40 KiB",
				formatKiB(x.Typed))
		}
		r.Goals.Add(x.GoneAway == x.Sockets, fmt.Sprintf("drain with %d sockets", x.Sockets), "each is closed by 1001", fmt.Sprint(x.GoneAway))
	}
	if s := r.Submits; len(s) == 3 {
		share := s[0].First.P99 - s[2].First.P99
		r.Goals.Add(share < 0.001, "submit to first token, warm, beyond the engine's own, p99", "under 1 ms", fmt.Sprintf("%.2f ms", 1000*share))
	}
	if x := r.Cold; x != nil {
		more := x.Ahead.P50 - x.Warm.P50
		r.Goals.Add(more < 0.050,
			fmt.Sprintf("first token of a model that starts for %g s, typed for %g s, beyond warm, p50", x.Load, x.Typed),
			"within 50 ms", fmt.Sprintf("%+.2f ms", 1000*more))
	}
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

func formatKiB(bytes float64) string { return fmt.Sprintf("%.1f KiB", bytes/1024) }

// ratioTo is a ratio to the value of the ceiling.
func ratioTo(value, ceiling float64) string {
	if ceiling <= 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", value/ceiling)
}

// Tables returns the result as tables.
func (r Result) Tables() []report.Part {
	var out []report.Part
	if len(r.Decisions) > 0 {
		t := &report.Table{Head: []string{"text", "mean bytes", "p50", "p99"}}
		for _, d := range r.Decisions {
			t.Add(d.Text, d.Bytes, report.Millis(d.P50), report.Millis(d.P99))
		}
		out = append(out, report.Part{Heading: "A decision at a new word, 150 intents, processor time", Table: t})
	}
	if len(r.Accuracy) > 0 {
		t := &report.Table{Head: []string{"fitted on", "examples", "right", "sure (0.75)", "right of the sure ones", "rejected of those of no intent"}}
		for _, x := range r.Accuracy {
			t.Add(x.Fitted, x.Examples, percent(x.Right), percent(x.Confident), percent(x.Sure), percent(x.Rejected))
		}
		out = append(out, report.Part{Heading: "CLINC-150, validation texts", Table: t})
		t = &report.Table{Head: []string{"confidence", "fitted on", "texts", "mean confidence", "right"}}
		for _, x := range r.Accuracy {
			for i, l := range x.Levels {
				to := 1.0
				if i+1 < len(x.Levels) {
					to = x.Levels[i+1].From
				}
				n := float64(max(l.Texts, 1))
				t.Add(fmt.Sprintf("%.2f to %.2f", l.From, to), x.Fitted, l.Texts, percent(l.Confidence/n), percent(float64(l.Right)/n))
			}
		}
		out = append(out, report.Part{Heading: "How often a confidence is right, of all validation texts, those of no intent too", Table: t})
	}
	if len(r.Idle) > 0 {
		t := &report.Table{Head: []string{"sockets", "server", "resident before", "each, connected", "each, when it has typed", "ratio to echo", "closed by 1001 at the end"}}
		for i, x := range r.Idle {
			ratio, gone := "1.00", ""
			if x.Server == Thaw && i+1 < len(r.Idle) {
				ratio, gone = ratioTo(x.Typed, r.Idle[i+1].Typed), fmt.Sprint(x.GoneAway)
			}
			t.Add(fmt.Sprint(x.Sockets), x.Server, fmt.Sprintf("%.1f MiB", float64(x.Before)/(1<<20)), formatKiB(x.Connected), formatKiB(x.Typed),
				ratio, gone)
		}
		out = append(out, report.Part{Heading: "Memory of idle sockets", Table: t})
	}
	if len(r.Typing) > 0 {
		t := &report.Table{Head: []string{"server", "CPU µs a word, median", "lowest", "highest", "ratio to echo", "words"}}
		for _, x := range r.Typing {
			t.Add(x.Server, fmt.Sprintf("%.1f", x.Median), fmt.Sprintf("%.1f", report.Quantile(x.Micros, 0)),
				fmt.Sprintf("%.1f", report.Quantile(x.Micros, 1)), ratioTo(x.Median, r.Typing[len(r.Typing)-1].Median),
				x.Words)
		}
		out = append(out, report.Part{Heading: "Typed words", Table: t})
	}
	if len(r.Submits) > 0 {
		t := &report.Table{Head: []string{"", "n", "first token, p50", "p99", "CPU µs of thaw a generation, median", "ratio to HTTP"}}
		for _, x := range r.Submits {
			cpu, ratio := "", ""
			if x.Median > 0 {
				cpu, ratio = fmt.Sprintf("%.1f", x.Median), ratioTo(x.Median, r.Submits[1].Median)
			}
			t.Add(x.Name, x.First.N, report.Millis(x.First.P50), report.Millis(x.First.P99), cpu, ratio)
		}
		out = append(out, report.Part{Heading: "Submits to a warm model", Table: t})
	}
	if x := r.Cold; x != nil {
		t := &report.Table{Head: []string{fmt.Sprintf("first token, engine loads for %g s", x.Load), "n", "p50", "max"}}
		t.Add(fmt.Sprintf("cold, after %g s of typing, begun after %s (%d were READY at the submit)", x.Typed, report.Millis(x.Sure.P50), x.Hits),
			x.Ahead.N, report.Millis(x.Ahead.P50), report.Millis(x.Ahead.Max))
		t.Add("the same models when warm", x.Warm.N, report.Millis(x.Warm.P50), report.Millis(x.Warm.Max))
		t.Add("cold, submitted at once", x.Plain.N, report.Millis(x.Plain.P50), report.Millis(x.Plain.Max))
		out = append(out, report.Part{Heading: "A cold start behind typing", Table: t})
	}
	return append(out, r.Goals.Parts()...)
}

// Write writes socket.json and socket.md into dir.
func (r Result) Write(dir string) error {
	return report.Write(dir, "socket", r,
		r.Page("Typing-time sessions",
			"thaw serve with keys on; the echo server is of the same library (coder/websocket) on net/http and sends each message back. "+
				"Memory is resident memory, garbage included, beyond that of the server when 50 sockets have come and gone; a socket has typed when "+
				"ten words were decided about. "+
				"A typed word is the whole text so far in one frame, 20 ms behind the one before, on 32 sockets, with a ping behind each text; both "+
				"servers get the same frames, in turns, and thaw decides among 150 made-up intents. "+
				"Submits are one at a time to an engine that answers at once with 64 tokens (testkit/fake), through the Router. "+
				"A text that is typed for a cold model names its intent in the first words; a start cannot be hidden that begins later than it "+
				"takes before the submit. "+
				"CPU is that of the server's process. Load average of the machine at the start: "+r.Load, r.Missing, r.Tables()))
}
