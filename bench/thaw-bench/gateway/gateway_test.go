package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/fake"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSum(t *testing.T) {
	text := "# HELP x y\n# TYPE thaw_buffered_requests gauge\n" +
		"thaw_buffered_requests{model=\"a\",team=\"b c\"} 3\nthaw_buffered_requests{model=\"}\"} 4 1700000000\nthaw_buffered_requests " +
		"1\nthaw_buffered_requests_total 100\nother 5\n"
	got, err := sumSeries(strings.NewReader(text), "thaw_buffered_requests")
	if err != nil || got != 8 {
		t.Errorf("%v %v", got, err)
	}
	if got, err := sumSeries(strings.NewReader(""), "x"); err != nil || got != 0 {
		t.Errorf("%v %v", got, err)
	}
	if _, err := sumSeries(strings.NewReader("x{a=\"b\"} many\n"), "x"); err == nil {
		t.Error("many is a number")
	}
}

func TestRatiosAndGoals(t *testing.T) {
	costs := []Cost{
		{Gateway: Nginx, Load: "JSON", Micros: []float64{30, 10, 20}},
		{Gateway: Thaw, Load: "JSON", Micros: []float64{29, 31, 30}},
		{Gateway: Thaw, Load: "SSE", Micros: []float64{100}}, // nginx was not measured
	}
	ratios(costs)
	if costs[1].Median != 30 || costs[1].Ratio != 1.5 || costs[0].Ratio != 1 || costs[2].Ratio != 0 {
		t.Errorf("%+v", costs)
	}
	r := Result{
		CPU:       costs,
		Release:   &Release{Wakes: 100, First: report.Summary{P99: 0.0009}, Waiters: 1000, Last: report.Summary{Max: 0.051}},
		ZeroToOne: &ZeroToOne{Added: 0.010},
		Held:      []Held{{Requests: 10000, PerRequest: 20480}},
		Missing:   []string{VLLMRouter},
	}
	r.Goals = checkGoals(r)
	got := ""
	for _, g := range r.Goals {
		got += map[bool]string{true: "+", false: "-"}[g.Met]
	}
	if got != "++-+" {
		t.Errorf("%s: %+v", got, r.Goals)
	}
	page := r.Markdown()
	for _, want := range []string{"| JSON | thaw | 30.0 |", "not measured: vllm-router", "20.0 KiB", "| the last of 1000 waiters, 64 at once | under 50 ms | 51.0 ms | NO |"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

func TestProgram(t *testing.T) {
	if _, err := program("/no/such/program"); err == nil {
		t.Error("a program that was named must be there")
	}
	if p, err := program("", "/no/such/program"); err != nil || p != "" {
		t.Errorf("%q %v", p, err)
	}
	if p, err := program("", "/no/such/program", "sh"); err != nil || p == "" {
		t.Errorf("%q %v", p, err)
	}
}

func TestModelsAreModelFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "functions")
	if err := writeModels(dir, "/bin/thaw", "/ready"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{warmModel, heldModel} {
		b, err := os.ReadFile(filepath.Join(dir, name+".yaml"))
		if err != nil || !json.Valid(b) || strings.Contains(string(b), "--ready-file") != (name == heldModel) {
			t.Errorf("%s: %v %s", name, err, b)
		}
	}
}

func TestProxyProxiesAndEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	free.Close()
	ended := make(chan error, 2)
	go func() { ended <- fake.New(fake.Options{}).Serve(ctx, ln) }()
	go func() { ended <- Proxy(ctx, addr, ln.Addr().String()) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	testkit.Eventually(t, "an answer", func() (bool, string) {
		res, err := client.Post("http://"+addr+"/v1/chat/completions", "application/json", strings.NewReader("{}"))
		if err != nil {
			return false, err.Error()
		}
		defer res.Body.Close()
		if b, _ := io.ReadAll(res.Body); string(b) != string(fake.PlainBody()) {
			t.Errorf("%s", b)
		}
		return true, ""
	})
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
