package metrics

import (
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

func SampleNode(n functions.Node, yield func(metric string, value float64, labels ...string)) {
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
	return s != "" && len(s) <= 10 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
