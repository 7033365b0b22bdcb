package orchestrator

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator/loadermetrics"
)

// counts are the counters for Prometheus. Labels come from this package and from the
// catalogue, never from requests.
type counts struct {
	evictions *prometheus.CounterVec // replicas stopped, by reason
	restarts  *prometheus.CounterVec // engines that failed, by cause
	sleeps    *prometheus.CounterVec // replicas put to sleep, by reason
	wakeups   *prometheus.CounterVec // replicas woken, by result
	thrash    prometheus.Counter     // functions evicted and started again soon after
	staged    *prometheus.CounterVec // bytes staged from remote sources, by kind of source
	prewarms  *prometheus.CounterVec // prewarms, by result
	wasted    *prometheus.CounterVec // GPU time held by unused prewarms
	late      prometheus.Counter     // heartbeats older than the last one
}

func newCounts() counts {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return counts{
		evictions: counter("thaw_evictions_total", "Replicas stopped; reason is evicted (for another function), idle, surplus, changed, asked, …", "reason"),
		restarts:  counter("thaw_engine_restarts_total", "Engines that broke; cause is start, died or hung.", "cause"),
		sleeps:    counter("thaw_sleeps_total", "Replicas sent to sleep; reason is idle, evicted (for another function) or time_slice.", "reason"),
		wakeups:   counter("thaw_sleep_wakeups_total", "Replicas woken from sleep; result is ready or failed.", "result"),
		late:      prometheus.NewCounter(prometheus.CounterOpts{Name: "thaw_heartbeats_late_total", Help: "Heartbeats that came twice, or after a newer one, and were passed over."}),
		thrash:    prometheus.NewCounter(prometheus.CounterOpts{Name: "thaw_thrash_total", Help: "Functions that were evicted and missed soon after."}),
		staged:    counter("thaw_stage_bytes_total", "Bytes of checkpoints brought from their sources.", "source", "result"),
		prewarms:  counter("thaw_prewarms_total", "Starts ahead; result is hit (READY when it was asked for), late (on its way), unused, evicted, no_room, over_budget, called_off, fetched or fetch_failed.", "result"),
		wasted:    counter("thaw_prewarm_wasted_gpu_seconds_total", "GPU time held ahead of requests that did not come; by is history, or the key that sent the hint.", "team", "by"),
	}
}

var (
	stateDesc = prometheus.NewDesc("thaw_model_state", "1 for the state a function is in.", []string{"model", "team", "state"}, nil)
	gpuDesc   = prometheus.NewDesc("thaw_gpu_memory_bytes", "Memory of a GPU; kind is total or free.", []string{"node", "gpu", "kind"}, nil)
	nodeDesc  = prometheus.NewDesc("thaw_node_memory_bytes", "Host memory replicas may reserve; kind is total or used.", []string{"node", "kind"}, nil)
	ckptDesc  = prometheus.NewDesc("thaw_checkpoint_bytes", "Bytes of a checkpoint in the store of a node; tier is NVME_CACHED (all of them) or DRAM_CACHED (those in the page cache).", []string{"node", "digest", "tier"}, nil)
	storeDesc = prometheus.NewDesc("thaw_store_bytes", "Store of checkpoints; kind is total or used.", []string{"node", "kind"}, nil)
)

// Describe implements [prometheus.Collector].
func (s *Orchestrator) Describe(ch chan<- *prometheus.Desc) {
	s.counts.evictions.Describe(ch)
	s.counts.restarts.Describe(ch)
	s.counts.sleeps.Describe(ch)
	s.counts.wakeups.Describe(ch)
	s.counts.staged.Describe(ch)
	s.counts.prewarms.Describe(ch)
	s.counts.wasted.Describe(ch)
	s.counts.thrash.Describe(ch)
	ch <- teamGPUDesc
	ch <- teamEvictDesc
	s.counts.late.Describe(ch)
	loadermetrics.Describe(ch)
	for _, d := range []*prometheus.Desc{stateDesc, gpuDesc, nodeDesc, storeDesc, ckptDesc} {
		ch <- d
	}
}

// Collect reports the current state and the counters.
func (s *Orchestrator) Collect(ch chan<- prometheus.Metric) {
	s.counts.evictions.Collect(ch)
	s.counts.restarts.Collect(ch)
	s.counts.sleeps.Collect(ch)
	s.counts.wakeups.Collect(ch)
	s.counts.staged.Collect(ch)
	s.counts.prewarms.Collect(ch)
	s.counts.wasted.Collect(ch)
	s.counts.thrash.Collect(ch)
	s.collectTeams(ch)
	s.counts.late.Collect(ch)
	gauge := func(d *prometheus.Desc, v functions.Bytes, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	// Read under the lock, sent without it: the reader of the channel may be slow.
	type state struct {
		name functions.Name
		word string
	}
	s.mu.Lock()
	states := make([]state, 0, len(s.functions))
	for name, f := range s.functions {
		if !f.Gone {
			states = append(states, state{name, s.stateOf(f).Word()})
		}
	}
	s.mu.Unlock()
	for _, x := range states {
		gauge(stateDesc, 1, x.name.Name, x.name.Team, x.word)
	}
	for _, n := range s.Nodes() {
		gauge(nodeDesc, n.Memory.Total, n.ID, "total")
		gauge(nodeDesc, n.Memory.Used, n.ID, "used")
		gauge(storeDesc, n.Store.Bytes, n.ID, "total")
		gauge(storeDesc, n.Store.Used, n.ID, "used")
		loadermetrics.Collect(ch, n.ID, n.Store.Loader)
		for _, c := range n.Cached {
			// A prefix of the digest distinguishes the checkpoints of a store.
			digest := strings.TrimPrefix(c.Digest, "sha256:")
			digest = digest[:min(12, len(digest))]
			gauge(ckptDesc, c.Bytes, n.ID, digest, string(functions.TierNVMe))
			gauge(ckptDesc, c.Memory, n.ID, digest, string(functions.TierDRAM))
		}
		for _, g := range n.GPUs {
			gauge(gpuDesc, g.MemoryTotal, n.ID, strconv.Itoa(g.Index), "total")
			gauge(gpuDesc, g.MemoryFree, n.ID, strconv.Itoa(g.Index), "free")
		}
	}
}

// recordFailure counts an engine that failed, before or after READY.
func (c *counts) recordFailure(served bool, cause string) {
	switch {
	case !served:
		c.restarts.WithLabelValues("start").Inc()
	case strings.HasPrefix(cause, "hung"):
		c.restarts.WithLabelValues("hung").Inc()
	default:
		c.restarts.WithLabelValues("died").Inc()
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
	c.staged.WithLabelValues(scheme, result).Add(float64(t.Bytes))
}
