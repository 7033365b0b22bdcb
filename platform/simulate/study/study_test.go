package study

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
	"github.com/thaw-dev/thaw/platform/simulate"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

func TestParsePolicy(t *testing.T) {
	for _, c := range []struct {
		text string
		want []Policy
		err  string
	}{
		{text: "lru", want: []Policy{{Text: "lru"}}},
		{text: "gdsf, next-use+learned+prewarm", want: []Policy{{Text: "gdsf", Eviction: eviction.GDSF}, {Text: "next-use+learned+prewarm", Eviction: eviction.NextUse, Learned: true, Prewarm: true}}},
		{text: "lru+idle=10m", want: []Policy{{Text: "lru+idle=10m", Idle: 10 * time.Minute}}},
		{text: "clairvoyant", want: []Policy{{Text: "clairvoyant", Eviction: eviction.Future, Future: true}}},
		{text: "lur", err: `"lur" is no policy; did you mean lru? (lru, lfu, gdsf, next-use, clairvoyant, furthest)`},
		{text: "", err: `"" is no policy (lru,`},
		{text: "lru,,gdsf", err: `"" is no policy`},
		{text: "lru+learnt", err: `"learnt" is no part of a policy; did you mean learned? (learned, prewarm, idle=TIME, bare)`},
		{text: "lru+idle=long", err: `"long" is no duration`},
		{text: "lru,gdsf,lru", err: "policy lru is asked for twice"},
	} {
		got, err := ParsePolicies(c.text)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: %v, want %q", c.text, err, c.err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v %v", c.text, got, err)
		}
	}
}

func TestParseSizing(t *testing.T) {
	for text, want := range map[string]Sizing{"4..64": {Low: 4, High: 64}, "8": {Low: 8, High: 8}, "8..8": {Low: 8, High: 8}} {
		if s, err := ParseSizing(text); err != nil || *s != want {
			t.Errorf("%s: %v %v", text, s, err)
		}
	}
	for _, text := range []string{"", "4-64", "64..4", "0..4", "a..b", "4..", "1..1000000000"} {
		if _, err := ParseSizing(text); err == nil || !strings.Contains(err.Error(), "want such as 4..64") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if got := (&Sizing{Low: 4, High: 64}).steps(); !reflect.DeepEqual(got, []int{4, 6, 8, 11, 16, 23, 32, 45, 64}) {
		t.Error(got)
	}
	if got := (&Sizing{Low: 1, High: 3}).steps(); got[0] != 1 || got[len(got)-1] != 3 || len(got) != 3 {
		t.Error(got)
	}
}

// smallStudy is a study that runs quickly.
func smallStudy(t *testing.T, policies string) *Study {
	t.Helper()
	f, err := fleet.Decode("f", []byte("nodes: [{gpus: 4}]"))
	if err != nil {
		t.Fatal(err)
	}
	tr, err := trace.Open("gen:models=12,requests=600,hours=1,teams=2", trace.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	p, err := ParsePolicies(policies)
	if err != nil {
		t.Fatal(err)
	}
	s := &Study{Fleet: f, Trace: tr.Read(), Requests: tr.Requests, Span: tr.Span, Policies: p, Seed: 1}
	s.Models, s.Sizes = Invent(Names(tr, 0), f, 1)
	return s
}

func TestPolicyComparison(t *testing.T) {
	s := smallStudy(t, "lru,gdsf,lru+idle=1s")
	rows := 0
	s.Progress = func(p Progress) {
		if rows++; p.Runs != 3 || p.Share < 0 || p.Share > 1 {
			t.Errorf("%+v", p)
		}
	}
	out, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if rows == 0 || len(out.Runs) != 3 || len(out.Needs) != 0 {
		t.Fatalf("%d, %+v", rows, out)
	}
	for i, r := range out.Runs {
		if r.Result.Policy != s.Policies[i].Text || r.Requests == 0 || r.Requests != out.Runs[0].Requests || r.GPUs != 4 {
			t.Errorf("%+v", r.Result)
		}
		if sum := total(r.GPUHours); math.Abs(sum-4*r.Seconds/3600) > 0.01 {
			t.Errorf("%s: %v GPU-hours in %v s", r.Result.Policy, sum, r.Seconds)
		}
	}
	// A short idle time causes more cold starts and fewer idle GPU-hours.
	if keep, drop := out.Runs[0], out.Runs[2]; drop.Cold <= keep.Cold || drop.GPUHours.Idle >= keep.GPUHours.Idle {
		t.Errorf("an idle time of 1s: %d cold, %v idle; else %d, %v", drop.Cold, drop.GPUHours.Idle, keep.Cold, keep.GPUHours.Idle)
	}
	// The JSON has the simulator's values under its names.
	b, err := json.Marshal(out.Runs[1])
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil || m["policy"] != "gdsf" {
		t.Fatal(string(b))
	}
	for _, key := range []string{"policy", "gpus", "requests", "cold", "cold_share", "ttft_seconds", "gpu_hours", "evictions", "teams"} {
		if _, ok := m[key]; !ok {
			t.Errorf("%s is missing in %s", key, b)
		}
	}
	again := smallStudy(t, "lru,gdsf,lru+idle=1s")
	again.Parallel = 1
	second, err := again.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range out.Runs {
		if !reflect.DeepEqual(out.Runs[i].Result, second.Runs[i].Result) {
			t.Errorf("%s: the same seed, another result", s.Policies[i].Text)
		}
	}
}

func TestHowMany(t *testing.T) {
	s := smallStudy(t, "lru")
	s.Sizing = &Sizing{Low: 1, High: 12, Goal: 20 * time.Second}
	out, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Needs) != 1 {
		t.Fatalf("%+v", out.Needs)
	}
	n := out.Needs[0]
	if n.GPUs > 1 && n.GPUs <= 12 && (n.P99 > 20 || n.Below <= 20 && n.Below > 0) {
		t.Errorf("%+v", n)
	}
	for i, r := range out.Runs[1:] {
		if r.GPUs <= out.Runs[i].GPUs {
			t.Error("the runs are not by GPUs")
		}
	}
	text := n.Sentence(out.Goal, s.Sizing)
	if !strings.HasPrefix(text, "lru: ") || !strings.Contains(text, "within 20 s") {
		t.Error(text)
	}
	if none := (Need{Policy: "lru", P99: 90}).Sentence(out.Goal, s.Sizing); !strings.Contains(none, "not even 12 GPUs") {
		t.Error(none)
	}
}

func TestGap(t *testing.T) {
	run := func(p99 float64) Run {
		return Run{Result: simulate.Result{Requests: 100, Ends: simulate.Ends{Answered: 100}, TTFT: simulate.Quantiles{P99: p99}}}
	}
	w := &studyRun{s: &Study{Sizing: &Sizing{Low: 4, High: 64, Goal: 10 * time.Second}, Policies: []Policy{{Text: "x"}}}, done: map[job]Run{
		{0, 4}: run(40), {0, 8}: run(9), {0, 16}: run(12), {0, 32}: run(8), {0, 64}: run(1),
	}}
	// A size that reaches the goal below one that does not is not the answer.
	if low, high := w.gap(0); low != 16 || high != 32 {
		t.Error(low, high)
	}
	// A short wait because most requests were refused does not reach the goal.
	bad := run(1)
	bad.Refused = map[string]int64{"queue_full": 60}
	w.done[job{0, 32}] = bad
	if low, high := w.gap(0); low != 32 || high != 64 {
		t.Error(low, high)
	}
	w.done[job{0, 64}] = bad
	if _, high := w.gap(0); high != 0 || w.need(0).GPUs != 0 {
		t.Error("nothing reaches it")
	}
}

func TestErrorsEnd(t *testing.T) {
	s := smallStudy(t, "lru,gdsf")
	s.Trace = func(yield func(trace.Request, error) bool) { yield(trace.Request{}, io.ErrUnexpectedEOF) }
	if _, err := s.Run(t.Context()); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := smallStudy(t, "lru").Run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestInventSizes(t *testing.T) {
	f, err := fleet.Decode("f", []byte("nodes: [{gpus: 4, gpuMemory: 24Gi}]"))
	if err != nil {
		t.Fatal(err)
	}
	var names []functions.Name
	for i := range 600 {
		names = append(names, functions.Name{Team: "default", Name: "m" + string(rune('a'+i%26)) + strings.Repeat("x", i/26)})
	}
	models, sizes := Invent(names, f, 7)
	count := map[functions.Bytes]int{}
	for _, m := range models {
		if p := functions.Validate(m); len(p) > 0 {
			t.Fatal(p)
		}
		size := sizes[m.FullName()]
		count[size]++
		r := m.Spec.Resources
		if r.GPUMemory > 24<<30 || functions.Bytes(r.GPUs)*r.GPUMemory != size {
			t.Errorf("%v of %v", r, size)
		}
	}
	for _, s := range InventedSizes {
		if count[s] < 60 || count[s] > 150 {
			t.Errorf("%v: %d of 600", s, count[s])
		}
	}
	_, again := Invent(names, f, 7)
	_, other := Invent(names, f, 8)
	if !reflect.DeepEqual(sizes, again) || reflect.DeepEqual(sizes, other) {
		t.Error("sizes go with the seed")
	}
}

func TestPageIsSelfContained(t *testing.T) {
	s := smallStudy(t, "lru,gdsf")
	s.Sizing = &Sizing{Low: 2, High: 6, Goal: time.Second}
	out, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out.Runs[0].Impossible = []simulate.Impossible{{Name: "default/<huge>", Why: "no node"}}
	page := out.Page(About{Command: `thaw simulate --trace "<a>"`, Trace: "a & b", Fleet: "f", Made: time.Unix(1e9, 0), Sizing: s.Sizing})
	for _, bad := range []string{"<script", "src=", "href=", "@import", "url(", "<huge>", "<a>", "a & b", "NaN", "Inf", "http"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	for _, want := range []string{"prefers-color-scheme:dark", "How many GPUs", "Time to first token", "Cold requests", "GPU-hours", "GPUs over time", "Teams", "team-2", "&lt;huge&gt;"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	// Every chart is well-formed XML.
	n := 0
	for rest := page; ; n++ {
		_, after, ok := strings.Cut(rest, "<svg")
		if !ok {
			break
		}
		svg, tail, ok := strings.Cut(after, "</svg>")
		if !ok {
			t.Fatal("a picture does not end")
		}
		d := xml.NewDecoder(strings.NewReader("<svg" + svg + "</svg>"))
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		rest = tail
	}
	if n < 6 {
		t.Errorf("%d pictures", n)
	}
	if to := os.Getenv("THAW_PAGE"); to != "" {
		os.WriteFile(to, []byte(page), 0o644)
	}
	// A page without data is still complete.
	if p := (&Outcome{Runs: []Run{{Policy: Policy{Text: "lru"}}}}).Page(About{}); !strings.Contains(p, "</html>") {
		t.Error(p)
	}
}

func TestPolicyNames(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.0004: "0.4 ms", 0.05: "50 ms", 0.1234: "123 ms", 1: "1 s", 17.71: "17.7 s", 300: "5 min", 5400: "1.5 h"} {
		if got := Seconds(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 12345678: "12,345,678", -1234: "-1,234", -123: "-123"} {
		if got := Count(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
