package coldstart

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/bench/load"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
)

// Rows of the result in addition to the platform's phases.
const (
	// Ready is from the wake to the replica's READY, by the platform's clock.
	Ready = "ready"
	// FirstToken is from the request's first byte to the first text, as the client
	// measures.
	FirstToken = "client_first_token"
	// Unmeasured is the part of FirstToken that no phase covers. It should be close to
	// 0; otherwise some phase is not measured.
	Unmeasured = "unmeasured"
)

// Row is one phase over all rounds.
type Row struct {
	Phase   string         `json:"phase"`
	Seconds report.Summary `json:"seconds"`
}

// Round is one cold start.
type Round struct {
	FirstToken float64            `json:"client_first_token"` // seconds
	Whole      float64            `json:"client_whole"`       // seconds, until [DONE]
	Timeline   functions.Timeline `json:"timeline"`
}

// Result is the benchmark's JSON document.
type Result struct {
	report.Provenance
	Function string  `json:"function"`
	Phases   []Row   `json:"phases"`
	Rounds   []Round `json:"rounds"`
}

// Options of Run.
type Options struct {
	Function functions.Name
	Rounds   int
	Each     time.Duration // timeout of one round
	Progress func(done, of int, last Round)
}

// Run scales the function to zero and wakes it with a streamed chat, o.Rounds times.
func Run(ctx context.Context, p *served.Platform, o Options) ([]Round, error) {
	req := load.Request{Model: o.Function.String(), Key: p.Token, Stream: true, Prompt: "What is thaw?"}.Bytes()
	var rounds []Round
	for i := range o.Rounds {
		r, err := measureOnce(ctx, p, o, req)
		if err != nil {
			return rounds, fmt.Errorf("round %d: %w", i+1, err)
		}
		rounds = append(rounds, r)
		if o.Progress != nil {
			o.Progress(i+1, o.Rounds, r)
		}
	}
	return rounds, p.Stop(ctx, o.Function)
}

func measureOnce(ctx context.Context, p *served.Platform, o Options, req []byte) (Round, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.Each, fmt.Errorf("not over within %s", o.Each))
	defer cancel()
	if err := p.Stop(ctx, o.Function); err != nil {
		return Round{}, fmt.Errorf("stop: %w", err)
	}
	k, err := load.Dial(ctx, p.Addr)
	if err != nil {
		return Round{}, err
	}
	defer func() { k.Close() }()
	began := time.Now()
	a, err := k.Do(ctx, req)
	if err != nil {
		return Round{}, fmt.Errorf("ask: %w", errors.Join(err, context.Cause(ctx)))
	}
	if a.Status != 200 {
		return Round{}, fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	}
	if !bytes.HasSuffix(bytes.TrimSpace(a.Body), []byte("data: [DONE]")) || a.First.IsZero() {
		return Round{}, fmt.Errorf("no whole stream: %.300s", a.Body)
	}
	id := a.ColdStart
	if id == "" || id == "1" {
		id = a.RequestID
	}
	if id == "" {
		return Round{}, errors.New("the answer names neither its cold start nor its request: is this thaw?")
	}
	r := Round{FirstToken: a.First.Sub(began).Seconds(), Whole: a.End.Sub(began).Seconds()}
	if r.Timeline, err = p.ColdStart(ctx, id); err != nil {
		return Round{}, fmt.Errorf("timeline: %w", err)
	}
	return r, nil
}

// Reduce summarises the rounds: the phases that occurred, in their order, then the
// additional rows.
func Reduce(rounds []Round) []Row {
	values := map[string][]float64{}
	for _, r := range rounds {
		sum := map[string]float64{}
		for _, s := range r.Timeline.Phases {
			sum[string(s.Phase)] += s.Duration
		}
		for phase, d := range sum {
			values[phase] = append(values[phase], d)
		}
		values[Ready] = append(values[Ready], r.Timeline.Total)
		values[FirstToken] = append(values[FirstToken], r.FirstToken)
		values[Unmeasured] = append(values[Unmeasured], math.Max(0, r.FirstToken-covered(r.Timeline.Phases)))
	}
	order := make([]string, 0, len(functions.Phases)+3)
	for _, p := range functions.Phases {
		order = append(order, string(p))
	}
	var rows []Row
	for _, name := range append(order, Ready, Unmeasured, FirstToken) {
		if v := values[name]; len(v) > 0 {
			rows = append(rows, Row{Phase: name, Seconds: report.Summarize(v)})
		}
	}
	return rows
}

// covered returns the time covered by at least one span.
func covered(spans []functions.Span) float64 {
	s := slices.Clone(spans)
	slices.SortFunc(s, func(a, b functions.Span) int {
		switch {
		case a.Start < b.Start:
			return -1
		case a.Start > b.Start:
			return 1
		}
		return 0
	})
	sum, at := 0.0, math.Inf(-1)
	for _, x := range s {
		end := x.Start + x.Duration
		if end <= at {
			continue
		}
		sum += end - math.Max(x.Start, at)
		at = end
	}
	return sum
}

// Table returns the result as a table.
func (r Result) Table() *report.Table {
	t := &report.Table{Head: []string{"phase", "p50", "p90", "max"}}
	for _, row := range r.Phases {
		s := row.Seconds
		t.Add(row.Phase, report.Millis(s.P50), report.Millis(s.P90), report.Millis(s.Max))
	}
	return t
}

// Picture returns the waterfall of the round with the median first token.
func (r Result) Picture() report.Waterfall {
	f := report.Waterfall{
		Title: fmt.Sprintf("%s: from zero replicas to the first token", r.Function),
		Sub:   fmt.Sprintf("median of %d cold starts; %s", len(r.Rounds), r.Machine),
	}
	if len(r.Rounds) == 0 {
		return f
	}
	sorted := slices.Clone(r.Rounds)
	slices.SortFunc(sorted, func(a, b Round) int {
		if a.FirstToken < b.FirstToken {
			return -1
		}
		return 1
	})
	m := sorted[(len(sorted)-1)/2]
	for _, s := range m.Timeline.Phases {
		f.Bars = append(f.Bars, report.Bar{Label: string(s.Phase), Start: s.Start, Duration: s.Duration, Class: string(s.Phase)})
	}
	f.Bars = append(f.Bars, report.Bar{Label: "client sees", Duration: m.FirstToken, Class: "total"})
	return f
}

// Page returns the report as an HTML page.
func (r Result) Page(regressions []Regression) string {
	p := report.NewPage("Cold starts of " + r.Function)
	p.Text(fmt.Sprintf("%s · commit %s · %s · %s", r.At.Format("2006-01-02 15:04 UTC"), r.Commit, r.Machine, r.Command))
	p.Picture(r.Picture())
	p.Table(r.Table())
	if len(regressions) > 0 {
		p.Heading("Worse than the baseline")
		for _, w := range regressions {
			p.Text(w.String())
		}
	}
	p.Heading("Every round")
	t := &report.Table{Head: []string{"round", "first token", "whole answer", "ready", "tier"}}
	for i, x := range r.Rounds {
		t.Add(i+1, report.Millis(x.FirstToken), report.Millis(x.Whole), report.Millis(x.Timeline.Total), x.Timeline.Tier)
	}
	p.Table(t)
	p.Text("Phases may overlap: bytes arrive while the engine boots. “ready” counts from the wake to READY by the platform's clock, " +
		"“unmeasured” is what of the client's time no phase covers.")
	return p.String()
}

// Write writes coldstart.json, coldstart.html and coldstart.svg.
func (r Result) Write(dir string, regressions []Regression) error {
	return errors.Join(
		report.WriteJSON(dir, "coldstart.json", r),
		report.WriteFile(dir, "coldstart.html", []byte(r.Page(regressions))),
		report.WriteFile(dir, "coldstart.svg", []byte(r.Picture().SVG())),
	)
}

// Read reads a baseline from a file.
func Read(file string) (Result, error) {
	f, err := os.Open(file)
	if err != nil {
		return Result{}, err
	}
	defer f.Close()
	var r Result
	if err := json.NewDecoder(io.LimitReader(f, 64<<20)).Decode(&r); err != nil {
		return Result{}, fmt.Errorf("%s: %w", file, err)
	}
	if r.APIVersion != functions.APIVersion || r.Kind != Kind || len(r.Phases) == 0 {
		return Result{}, fmt.Errorf("%s is no result of `thaw bench coldstart`", file)
	}
	return r, nil
}

// Kind is the kind of the result's document.
const Kind = "ColdStartBench"
