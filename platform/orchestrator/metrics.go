package orchestrator

import (
	"maps"
	"strconv"
	"strings"
	"sync"

	"github.com/thaw-dev/thaw/functions"
)

// counts are the counters of events. Labels come from this package and from the
// catalogue, never from requests.
type counts struct {
	mu     sync.Mutex
	values map[count]float64
}

// count names one counter: a metric and the values of its labels.
type count struct {
	metric string
	labels [2]string
	n      int // of the labels
}

func newCounts() counts {
	return counts{values: map[count]float64{{metric: "thaw_heartbeats_late_total"}: 0, {metric: "thaw_thrash_total"}: 0}}
}

func countOf(metric string, labels []string) count {
	c := count{metric: metric}
	c.n = copy(c.labels[:], labels)
	return c
}

func (c *counts) add(metric string, value float64, labels ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.values[countOf(metric, labels)] += value
}

// Samples yields the counters and the current state.
func (o *Orchestrator) Samples(yield func(metric string, value float64, labels ...string)) {
	// Read under the locks, yielded without them: the reader may be slow.
	o.counts.mu.Lock()
	counters := maps.Clone(o.counts.values)
	o.counts.mu.Unlock()
	type state struct {
		name functions.Name
		word string
	}
	o.mu.Lock()
	states := make([]state, 0, len(o.functions))
	for name, f := range o.functions {
		if !f.Gone {
			states = append(states, state{name, f.state().Word()})
		}
	}
	o.mu.Unlock()
	for c, v := range counters {
		yield(c.metric, v, c.labels[:c.n]...)
	}
	for _, x := range states {
		yield("thaw_model_state", 1, x.name.Name, x.name.Team, x.word)
	}
	o.sampleTeams(yield)
	for _, n := range o.Nodes() {
		bytes := func(metric string, v functions.Bytes, labels ...string) {
			yield(metric, float64(v), append([]string{n.ID}, labels...)...)
		}
		bytes("thaw_node_memory_bytes", n.Memory.Total, "total")
		bytes("thaw_node_memory_bytes", n.Memory.Used, "used")
		bytes("thaw_store_bytes", n.Store.Bytes, "total")
		bytes("thaw_store_bytes", n.Store.Used, "used")
		if n.Store.Loader != nil {
			sampleLoader(n.ID, n.Store.Loader, yield)
		}
		for _, c := range n.Cached {
			// A prefix of the digest distinguishes the checkpoints of a store.
			digest := strings.TrimPrefix(c.Digest, "sha256:")
			digest = digest[:min(12, len(digest))]
			bytes("thaw_checkpoint_bytes", c.Bytes, digest, string(functions.TierNVMe))
			bytes("thaw_checkpoint_bytes", c.Memory, digest, string(functions.TierDRAM))
		}
		for _, g := range n.GPUs {
			if g.MemoryTotal > 0 {
				bytes("thaw_gpu_memory_bytes", g.MemoryTotal, strconv.Itoa(g.Index), "total")
			}
			if g.Health != functions.GPUUnknown {
				bytes("thaw_gpu_memory_bytes", g.MemoryFree, strconv.Itoa(g.Index), "free")
			}
		}
	}
}

// sampleLoader yields the metrics of one node's loader.
func sampleLoader(node string, s *functions.LoaderStats, yield func(metric string, value float64, labels ...string)) {
	bytes := map[string]functions.Bytes{}
	for scheme, b := range s.Bytes {
		if !isSchemeWord(scheme) {
			scheme = "other" // the label comes from an agent
		}
		bytes[scheme] += b
	}
	for scheme, b := range bytes {
		yield("thaw_loader_bytes_total", float64(b), node, scheme)
	}
	yield("thaw_loader_bytes_per_second", s.Rate, node)
	yield("thaw_loader_in_flight", float64(s.InFlight), node, "ranges")
	yield("thaw_loader_in_flight", float64(s.Stagings), node, "stagings")
	yield("thaw_loader_stagings_total", float64(s.Staged), node, "ready")
	yield("thaw_loader_stagings_total", float64(s.Failed), node, "failed")
	yield("thaw_loader_wasted_bytes_total", float64(s.Wasted), node)
	yield("thaw_loader_resumed_bytes_total", float64(s.Resumed), node)
	yield("thaw_loader_reused_bytes_total", float64(s.Reused), node)
	yield("thaw_loader_peer_sent_bytes_total", float64(s.PeerSent), node)
	yield("thaw_loader_requests_total", float64(s.Requests), node)
	yield("thaw_loader_retries_total", float64(s.Retries), node)
	yield("thaw_loader_hedges_total", float64(s.Hedges), node)
	yield("thaw_loader_throttles_total", float64(s.Throttles), node)
	yield("thaw_store_evictions_total", float64(s.Evictions), node)
	yield("thaw_store_evicted_bytes_total", float64(s.EvictedBytes), node)
	yield("thaw_store_quarantined_total", float64(s.Quarantined), node)
}

// isSchemeWord reports whether s can be the scheme of a source.
func isSchemeWord(s string) bool {
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 10
}

// recordFailure counts an engine that failed, before or after READY.
func (c *counts) recordFailure(served bool, cause string) {
	switch {
	case !served:
		c.add("thaw_engine_restarts_total", 1, "start")
	case strings.HasPrefix(cause, "hung"):
		c.add("thaw_engine_restarts_total", 1, "hung")
	default:
		c.add("thaw_engine_restarts_total", 1, "died")
	}
}

// recordStaged counts the bytes that a cold start staged.
func (c *counts) recordStaged(source string, t functions.Timeline) {
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
	c.add("thaw_stage_bytes_total", float64(t.Bytes), scheme, result)
}
