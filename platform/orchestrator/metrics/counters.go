package metrics

import (
	"maps"
	"strings"
	"sync"

	"github.com/thaw-dev/thaw/functions"
)

// Counters are the counters of the loop. Labels come from the loop and from the catalogue,
// never from requests.
type Counters struct {
	mu     sync.Mutex
	values map[count]float64
}

// count names one counter: a metric and the values of its labels.
type count struct {
	metric string
	labels [2]string
	n      int // of the labels
}

// New returns Counters, of which those that have no labels begin at 0.
func New() *Counters {
	return &Counters{values: map[count]float64{{metric: "thaw_heartbeats_late_total"}: 0, {metric: "thaw_thrash_total"}: 0}}
}

func (c *Counters) Add(metric string, value float64, labels ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := count{metric: metric}
	x.n = copy(x.labels[:], labels)
	c.values[x] += value
}

// Each yields all counters, without a lock: the reader may be slow.
func (c *Counters) Each(yield func(metric string, value float64, labels ...string)) {
	c.mu.Lock()
	values := maps.Clone(c.values)
	c.mu.Unlock()
	for x, v := range values {
		yield(x.metric, v, x.labels[:x.n]...)
	}
}

// RecordFailure counts an engine that failed, before or after READY.
func (c *Counters) RecordFailure(served bool, cause string) {
	switch {
	case !served:
		c.Add("thaw_engine_restarts_total", 1, "start")
	case strings.HasPrefix(cause, "hung"):
		c.Add("thaw_engine_restarts_total", 1, "hung")
	default:
		c.Add("thaw_engine_restarts_total", 1, "died")
	}
}

// RecordStaged counts the bytes that a cold start staged.
func (c *Counters) RecordStaged(source string, t functions.Timeline) {
	if t.Tier != functions.TierRemote || t.Bytes == 0 {
		return
	}
	scheme, _, ok := strings.Cut(source, "://")
	if !ok {
		scheme = "file"
	}
	result := "ready"
	if t.State != functions.Ready {
		result = "failed"
	}
	c.Add("thaw_stage_bytes_total", float64(t.Bytes), scheme, result)
}
