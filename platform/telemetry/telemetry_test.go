package telemetry

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestDeclarations: each metric is declared once and follows Prometheus' conventions.
func TestDeclarations(t *testing.T) {
	seen := map[string]bool{}
	word := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	for _, d := range declarations {
		if seen[d.name] {
			t.Errorf("%s is declared twice", d.name)
		}
		seen[d.name] = true
		if !strings.HasPrefix(d.name, "thaw_") || !word.MatchString(d.name) ||
			!strings.HasSuffix(d.help, ".") && !strings.HasSuffix(d.help, "…") {
			t.Errorf("%s: %s", d.name, d.help)
		}
		if counts := d.kind == prometheus.CounterValue; counts != strings.HasSuffix(d.name, "_total") {
			t.Errorf("%s: only counters end in _total", d.name)
		}
		if (d.kind == prometheus.UntypedValue) != (d.buckets != nil) || !slices.IsSorted(d.buckets) {
			t.Errorf("%s: buckets %v", d.name, d.buckets)
		}
		for _, l := range d.labels {
			if !word.MatchString(l) {
				t.Errorf("%s: label %q", d.name, l)
			}
		}
	}
}

// TestRegistry: sampled values, counters and histograms of several functions, of which
// one is forgotten; a team reads its own.
func TestRegistry(t *testing.T) {
	base := New(BuildInfo("1.2"))
	r := base.Extend(Gauge("thaw_reconcile_queue", func() float64 { return 3 }))
	r.Add(func(yield func(string, float64, ...string)) {
		yield("thaw_model_state", 1, "m", "red", "ready")
		yield("thaw_model_state", 1, "m", "blue", "cold")
	})
	for _, team := range []string{"red", "blue"} {
		requests := r.Series("thaw_requests_total", "m", team, "/v1/chat/completions", "200", "false")
		requests(1)
		requests(1)
		r.Series("thaw_request_seconds", "m", team, "false")(.02)
		r.Series("thaw_route_escalations_total", team+"/m", "red", "a")(1)
	}
	r.Series("thaw_quota_rejections_total", "blue", "rate")(1)
	r.Counter("thaw_gateway_requests_total")("model", "200")
	r.Forget("m", "blue")
	text, contentType, err := r.Text("")
	if err != nil || !strings.HasPrefix(contentType, "text/plain; version=0.0.4") {
		t.Fatal(contentType, err)
	}
	for _, line := range []string{
		`thaw_build_info{go="go`, "# TYPE thaw_reconcile_queue gauge\nthaw_reconcile_queue 3\n", `thaw_model_state{model="m",state="cold",team="blue"} 1`,
		`thaw_requests_total{code="200",cold="false",model="m",route="/v1/chat/completions",team="red"} 2`, `thaw_gateway_requests_total{code="200",to="model"} 1`,
		`thaw_route_escalations_total{router="red/m",target="a",team="red"} 1`,
		"# TYPE thaw_request_seconds histogram\n", `thaw_request_seconds_bucket{cold="false",model="m",team="red",le="0.025"} 1`, `thaw_quota_rejections_total{reason="rate",team="blue"} 1`,
	} {
		if !strings.Contains(string(text), line) {
			t.Errorf("%s is missing in\n%s", line, text)
		}
	}
	if strings.Contains(string(text), "blue/m") {
		t.Errorf("a forgotten Router is in\n%s", text)
	}
	if text, _, _ := base.Text(""); strings.Contains(string(text), "thaw_model") || !strings.Contains(string(text), "thaw_build_info") {
		t.Errorf("the extended registry has\n%s", text)
	}
	if text, _, _ := r.Text("red"); strings.Contains(string(text), "blue") || !strings.Contains(string(text), `team="red"`) {
		t.Errorf("the red team reads\n%s", text)
	}
}

// TestUndeclared: a value that no declaration fits is an error at the scrape.
func TestUndeclared(t *testing.T) {
	for _, yielded := range [][]string{{"thaw_nothing"}, {"thaw_reconcile_queue", "label"}, {"thaw_model_state", "\xff", "team", "cold"}} {
		r := New(func(yield func(string, float64, ...string)) { yield(yielded[0], 1, yielded[1:]...) })
		if _, err := r.Gather(); err == nil {
			t.Errorf("%q is exported", yielded)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a gauge can be added to")
		}
	}()
	New().Series("thaw_reconcile_queue")
}
