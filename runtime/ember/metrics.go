package ember

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// metrics have vLLM's names. The client library would add milliseconds to every start.
type metrics struct {
	prompt, generated atomic.Int64
	first, e2e        histogram

	mu   sync.Mutex
	done map[string]int64 // by finished_reason; guarded by mu
}

func newMetrics() *metrics {
	return &metrics{
		first: histogram{bounds: []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}},
		e2e:   histogram{bounds: []float64{.01, .05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}},
		done:  map[string]int64{"stop": 0, "length": 0, "abort": 0},
	}
}

func (m *metrics) finished(reason string) {
	m.mu.Lock()
	m.done[reason]++
	m.mu.Unlock()
}

// histogram counts observations in seconds.
type histogram struct {
	bounds []float64
	mu     sync.Mutex
	counts [32]int64 // guarded by mu, one more than bounds are used
	sum    float64
	n      int64
}

func (h *histogram) observe(v float64) {
	h.mu.Lock()
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[min(i, len(h.counts)-1)]++
	h.sum += v
	h.n++
	h.mu.Unlock()
}

var escapeLabel = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// write writes Prometheus' text format.
func (m *metrics) write(w io.Writer, model string, l *loop) {
	label := `model_name="` + escapeLabel.Replace(model) + `"`
	one := func(kind, name, help string, v any) {
		fmt.Fprintf(w, "# HELP vllm:%s %s\n# TYPE vllm:%s %s\nvllm:%s{%s} %v\n", name, help, name, kind, name, label, v)
	}
	var running, waiting int64
	usage := 0.0
	if l != nil {
		running, waiting = l.nRunning.Load(), int64(l.queued())
		if running > 0 {
			usage = float64(l.nCached.Load()) / float64(l.maxSeqs*l.c.maxLen)
		}
	}
	one("gauge", "num_requests_running", "Sequences that are being worked on.", running)
	one("gauge", "num_requests_waiting", "Sequences that wait for a place.", waiting)
	one("gauge", "kv_cache_usage_perc", "Share of all positions that could be held. 1 is all.", usage)
	one("counter", "prompt_tokens_total", "Prompt tokens processed.", m.prompt.Load())
	one("counter", "generation_tokens_total", "Tokens generated.", m.generated.Load())
	name := "request_success_total"
	fmt.Fprintf(w, "# HELP vllm:%s Requests that ended, by reason.\n# TYPE vllm:%s counter\n", name, name)
	m.mu.Lock()
	done := maps.Clone(m.done)
	m.mu.Unlock()
	for _, r := range slices.Sorted(maps.Keys(done)) {
		fmt.Fprintf(w, "vllm:%s{finished_reason=%q,%s} %d\n", name, r, label, done[r])
	}
	m.first.write(w, "time_to_first_token_seconds", "From arrival to the first token.", label)
	m.e2e.write(w, "e2e_request_latency_seconds", "From arrival to the last token.", label)
}

func (h *histogram) write(w io.Writer, name, help, label string) {
	h.mu.Lock()
	counts, sum, n := h.counts, h.sum, h.n
	h.mu.Unlock()
	fmt.Fprintf(w, "# HELP vllm:%s %s\n# TYPE vllm:%s histogram\n", name, help, name)
	var c int64
	for i, b := range append(slices.Clone(h.bounds), math.Inf(1)) {
		c += counts[i]
		fmt.Fprintf(w, "vllm:%s_bucket{le=%q,%s} %d\n", name, fmt.Sprint(b), label, c)
	}
	fmt.Fprintf(w, "vllm:%s_sum{%s} %v\nvllm:%s_count{%s} %d\n", name, label, sum, name, label, n)
}
