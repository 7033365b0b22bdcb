package grafana_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
)

// scenes have for each alert what series make it fire, a value a minute, with which labels,
// and what series near to them do not.
var scenes = map[string]struct {
	fires  []string
	labels string
	calm   []string
}{
	"ThawAbsent": {
		fires: []string{`up 0x30`}, labels: `{}`,
		calm: []string{`thaw_build_info{version="1"} 1x10 _x3 1x17`},
	},
	"ThawControllerLost": {
		fires: []string{`thaw_controller_connected{instance="a"} 1x10 0x20`}, labels: `{instance="a"}`,
		calm: []string{`thaw_controller_connected{instance="a"} 1x10 0x3 1x17`},
	},
	"ThawNodeLoaderLost": {
		fires: []string{`thaw_nodeloader_connected{instance="a"} 1x10 0x20`}, labels: `{instance="a"}`,
		calm: []string{`thaw_nodeloader_connected{instance="a"} 1x10 0x3 1x17`},
	},
	"ThawNodeGone": {
		fires:  []string{`thaw_node_memory_bytes{kind="total",node="a"} 8x30`, `thaw_node_memory_bytes{kind="total",node="b"} 8x5`},
		labels: `{node="b"}`,
		calm:   []string{`thaw_node_memory_bytes{kind="total",node="a",instance="1"} 8x10`, `thaw_node_memory_bytes{kind="total",node="a",instance="2"} _x11 8x19`},
	},
	"ThawStartsFail": {
		fires: []string{`thaw_cold_start_seconds_count{result="failed",team="t",model="m"} _x20 1x9`}, labels: `{team="t",model="m"}`,
		calm: []string{`thaw_cold_start_seconds_count{result="ready",team="t",model="m"} 0+1x60`},
	},
	"ThawColdStartsSlow": {
		fires: []string{
			`thaw_cold_start_seconds_bucket{result="ready",team="t",model="m",le="5"} 0+1x1500 1500x60`,
			`thaw_cold_start_seconds_bucket{result="ready",team="t",model="m",le="20"} 0+1x1500 1501+1x60`,
			`thaw_cold_start_seconds_bucket{result="ready",team="t",model="m",le="+Inf"} 0+1x1500 1501+1x60`,
			`thaw_cold_start_seconds_count{result="ready",team="t",model="m"} 0+1x1500 1501+1x60`,
		}, labels: `{team="t",model="m"}`,
		calm: []string{
			`thaw_cold_start_seconds_bucket{result="ready",team="t",model="m",le="5"} 0+1x1560`,
			`thaw_cold_start_seconds_bucket{result="ready",team="t",model="m",le="20"} 0+1x1560`,
			`thaw_cold_start_seconds_bucket{result="ready",team="t",model="m",le="+Inf"} 0+1x1560`,
			`thaw_cold_start_seconds_count{result="ready",team="t",model="m"} 0+1x1560`,
		},
	},
	"ThawEnginesBreak": {
		fires: []string{`thaw_engine_restarts_total{cause="died"} 0+1x10`}, labels: `{cause="died"}`,
		calm: []string{`thaw_engine_restarts_total{cause="died"} 0x10 1x20`, `thaw_engine_restarts_total{cause="start"} 0+1x30`},
	},
	"ThawErrors": {
		fires:  []string{`thaw_requests_total{code="200",team="t",model="m"} 0+90x30`, `thaw_requests_total{code="502",team="t",model="m"} 0+10x30`},
		labels: `{team="t",model="m"}`,
		calm:   []string{`thaw_requests_total{code="200",team="t",model="m"} 0+90x30`, `thaw_requests_total{code="502",team="t",model="m"} 0+1x30`, `thaw_requests_total{code="429",team="t",model="m"} 0+50x30`},
	},
	"ThawQueueFull": {
		fires:  []string{`thaw_requests_total{code="503",team="t",model="m"} 0+1x20`, `thaw_buffered_requests{team="t",model="m"} 9x20`},
		labels: `{team="t",model="m"}`,
		calm:   []string{`thaw_requests_total{code="503",team="t",model="m"} 0+1x20`, `thaw_buffered_requests{team="t",model="m"} 0x20`, `thaw_buffered_requests{team="t",model="n"} 9x20`},
	},
	"ThawQueueSlow": {
		fires:  []string{`thaw_queue_wait_seconds_bucket{team="t",model="m",le="30"} 0x30`, `thaw_queue_wait_seconds_bucket{team="t",model="m",le="60"} 0+1x30`, `thaw_queue_wait_seconds_bucket{team="t",model="m",le="+Inf"} 0+1x30`},
		labels: `{team="t",model="m"}`,
		calm:   []string{`thaw_queue_wait_seconds_bucket{team="t",model="m",le="10"} 0+1x30`, `thaw_queue_wait_seconds_bucket{team="t",model="m",le="60"} 0+1x30`, `thaw_queue_wait_seconds_bucket{team="t",model="m",le="+Inf"} 0+1x30`},
	},
	"ThawQuotaReached": {
		fires: []string{`thaw_quota_rejections_total{team="t",reason="rate"} 0+1x40`}, labels: `{team="t",reason="rate"}`,
		calm: []string{`thaw_quota_rejections_total{team="t",reason="rate"} 3x40`},
	},
	"ThawConnectionsRefused": {
		fires: []string{`thaw_connections_dropped_total{reason="total"} 0+1x20`}, labels: `{reason="total"}`,
		calm: []string{`thaw_connections_dropped_total{reason="idle"} 0+1x20`},
	},
	"ThawRemoteOpen": {
		fires: []string{`thaw_remote_circuit{state="open",team="t",model="m"} 0x5 1x10`}, labels: `{team="t",model="m"}`,
		calm: []string{`thaw_remote_circuit{state="open",team="t",model="m"} 0x5 1 0x10`, `thaw_remote_circuit{state="closed",team="t",model="m"} 1x16`},
	},
	"ThawSpendingNearBound": {
		fires: []string{`thaw_remote_spent_today{team="t",model="m"} 0+0.5x9`, `thaw_remote_spend_limit{team="t",model="m"} 5x9`}, labels: `{team="t",model="m"}`,
		calm: []string{
			`thaw_remote_spent_today{team="t",model="m",instance="a"} 3x9`, `thaw_remote_spent_today{team="t",model="m",instance="b"} 3x9`,
			`thaw_remote_spend_limit{team="t",model="m",instance="a"} 5x9`, `thaw_remote_spend_limit{team="t",model="m",instance="b"} 5x9`,
			`thaw_remote_spent_today{team="t",model="unlimited"} 9x9`,
		},
	},
	"ThawTeamSpendingNearBound": {
		fires: []string{`thaw_team_spent_today{team="t"} 0+0.5x9`, `thaw_team_spend_limit{team="t"} 5x9`}, labels: `{team="t"}`,
		calm: []string{`thaw_team_spent_today{team="t"} 3x9`, `thaw_team_spend_limit{team="t"} 5x9`},
	},
	"ThawStoreNearFull": {
		fires:  []string{`thaw_store_bytes{kind="used",node="a"} 95x30`, `thaw_store_bytes{kind="total",node="a"} 100x30`, `thaw_store_evictions_total{node="a"} 0x5 1x25`},
		labels: `{node="a"}`,
		calm:   []string{`thaw_store_bytes{kind="used",node="a"} 95x30`, `thaw_store_bytes{kind="total",node="a"} 100x30`, `thaw_store_evictions_total{node="a"} 4x30`, `thaw_loader_stagings_total{node="b",result="failed"} 0+1x30`},
	},
	"ThawStoreDamaged": {
		fires: []string{`thaw_store_quarantined_total{node="a"} 0x5 1x5`}, labels: `{node="a"}`,
		calm: []string{`thaw_store_quarantined_total{node="a"} 1x10`},
	},
	"ThawThrash": {
		fires: []string{`thaw_thrash_total 0+1x10`}, labels: `{}`,
		calm: []string{`thaw_thrash_total 0x5 1x20`},
	},
	"ThawBatchesStuck": {
		fires: []string{`thaw_batch_lines_waiting{team="t"} 9x130`, `thaw_batch_lines_total{team="t",result="completed"} 5x130`}, labels: `{team="t"}`,
		calm: []string{`thaw_batch_lines_waiting{team="t"} 9x130`, `thaw_batch_lines_total{team="t",result="failed"} 0+1x130`},
	},
	"ThawLogLinesDropped": {
		fires: []string{`thaw_log_lines_dropped_total{instance="a"} 0x5 7x5`}, labels: `{instance="a"}`,
		calm: []string{`thaw_log_lines_dropped_total{instance="a"} 7x10`},
	},
}

// fired plays the series and returns the labels with which a rule fired, after having held
// for as long as it says.
func fired(t *testing.T, rules []rulefmt.Rule, rule rulefmt.Rule, lines []string) []string {
	t.Helper()
	var s store
	begin := time.Unix(1_800_000_000, 0)
	s.load(t, begin, time.Minute, lines...)
	last := begin
	for _, x := range s.series {
		if at := time.UnixMilli(x.samples[len(x.samples)-1].T()); at.After(last) {
			last = at
		}
	}
	since, all := map[string]time.Time{}, map[string]bool{}
	for at := begin; !at.After(last); at = at.Add(time.Minute) {
		for _, r := range rules {
			if r.Record == "" {
				continue
			}
			for _, v := range s.query(t, r.Expr, at) {
				b := labels.NewBuilder(v.Metric)
				b.Set(model.MetricNameLabel, r.Record)
				s.add(b.Labels(), at, v.F)
			}
		}
		held := map[string]time.Time{}
		for _, v := range s.query(t, rule.Expr, at) {
			b := labels.NewBuilder(v.Metric)
			b.Del(model.MetricNameLabel)
			name := b.Labels().String()
			held[name] = at
			if from, ok := since[name]; ok {
				held[name] = from
			}
			if at.Sub(held[name]) >= time.Duration(rule.For) {
				all[name] = true
			}
		}
		since = held
	}
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// TestAlerts fires each alert on series that were made for it.
func TestAlerts(t *testing.T) {
	rules, seen := readRules(t), 0
	for _, r := range rules {
		if r.Alert == "" {
			continue
		}
		seen++
		t.Run(r.Alert, func(t *testing.T) {
			x, ok := scenes[r.Alert]
			if !ok {
				t.Fatal("no scene fires it")
			}
			want, _, err := grammar.ParseSeriesDesc("x" + x.labels + " 0")
			if err != nil {
				t.Fatal(err)
			}
			b := labels.NewBuilder(want)
			b.Del(model.MetricNameLabel)
			if got := fired(t, rules, r, x.fires); !slices.Equal(got, []string{b.Labels().String()}) {
				t.Errorf("fired with %q, want %s", got, b.Labels())
			}
			if got := fired(t, rules, r, x.calm); len(got) > 0 {
				t.Errorf("fired with %q, want nothing", got)
			}
			for _, m := range ofSummary.FindAllStringSubmatch(r.Annotations["summary"], -1) {
				if !want.Has(m[1]) {
					t.Errorf("the summary names %s, the alert has %s", m[1], x.labels)
				}
			}
		})
	}
	if seen != len(scenes) {
		t.Errorf("%d alerts, %d scenes", seen, len(scenes))
	}
}

var ofSummary = regexp.MustCompile(`\$labels\.(\w+)`)

// TestRunbook: each alert names its section, and each section its alert.
func TestRunbook(t *testing.T) {
	const page = "deploy/docs/alerts.md"
	text, err := os.ReadFile("../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, r := range readRules(t) {
		if r.Alert == "" {
			continue
		}
		want = append(want, r.Alert)
		if got := r.Annotations["runbook"]; got != page+"#"+strings.ToLower(r.Alert) {
			t.Errorf("%s: the runbook is %q", r.Alert, got)
		}
		if r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
			t.Errorf("%s: severity or summary is missing", r.Alert)
		}
	}
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(text), -1) {
		got = append(got, m[1])
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("sections %q, alerts %q", got, want)
	}
}
