// Package loadermetrics exports the counters of the nodes' loaders to Prometheus.
package loadermetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/thaw-dev/thaw/functions"
)

// loaderCount is one counter of a node's loader.
type loaderCount struct {
	desc *prometheus.Desc
	of   func(*functions.LoaderStats) float64
}

func loaderDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"node"}, labels...), nil)
}

// The counters are the agents' own: they restart at 0 with the agent, as Prometheus
// expects.
var (
	loadedDesc   = loaderDesc("thaw_loader_bytes_total", "Bytes brought into the store, by the source's scheme; peer is other nodes.", "source")
	loadRateDesc = loaderDesc("thaw_loader_bytes_per_second", "Bytes a second that come into the store now.")
	loadNowDesc  = loaderDesc("thaw_loader_in_flight", "What is under way; kind is ranges or stagings.", "kind")
	stagingsDesc = loaderDesc("thaw_loader_stagings_total", "Stagings that ended; result is ready or failed.", "result")

	loaderCounts = []loaderCount{
		{loaderDesc("thaw_loader_wasted_bytes_total", "Bytes that came twice or in vain."), func(s *functions.LoaderStats) float64 { return float64(s.Wasted) }},
		{loaderDesc("thaw_loader_resumed_bytes_total", "Bytes that were here when a staging began."), func(s *functions.LoaderStats) float64 { return float64(s.Resumed) }},
		{loaderDesc("thaw_loader_reused_bytes_total", "Bytes that another checkpoint had already."), func(s *functions.LoaderStats) float64 { return float64(s.Reused) }},
		{loaderDesc("thaw_loader_peer_sent_bytes_total", "Bytes sent to other nodes."), func(s *functions.LoaderStats) float64 { return float64(s.PeerSent) }},
		{loaderDesc("thaw_loader_requests_total", "Requests for ranges."), func(s *functions.LoaderStats) float64 { return float64(s.Requests) }},
		{loaderDesc("thaw_loader_retries_total", "Requests for ranges that were tried again."), func(s *functions.LoaderStats) float64 { return float64(s.Retries) }},
		{loaderDesc("thaw_loader_hedges_total", "Second requests for what a slow one had not brought."), func(s *functions.LoaderStats) float64 { return float64(s.Hedges) }},
		{loaderDesc("thaw_loader_throttles_total", "Answers that asked to be left alone."), func(s *functions.LoaderStats) float64 { return float64(s.Throttles) }},
		{loaderDesc("thaw_store_evictions_total", "Checkpoints and unfinished stagings that made room."), func(s *functions.LoaderStats) float64 { return float64(s.Evictions) }},
		{loaderDesc("thaw_store_evicted_bytes_total", "Bytes of those."), func(s *functions.LoaderStats) float64 { return float64(s.EvictedBytes) }},
		{loaderDesc("thaw_store_quarantined_total", "Files taken out because they were not what they were."), func(s *functions.LoaderStats) float64 { return float64(s.Quarantined) }},
	}
)

// Describe sends the descriptions of all metrics.
func Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{loadedDesc, loadRateDesc, loadNowDesc, stagingsDesc} {
		ch <- d
	}
	for _, c := range loaderCounts {
		ch <- c.desc
	}
}

// Collect sends the metrics of one node; none if it reports no loader.
func Collect(ch chan<- prometheus.Metric, node string, s *functions.LoaderStats) {
	if s == nil {
		return
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, append([]string{node}, labels...)...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{node}, labels...)...)
	}
	bytes := map[string]float64{}
	for scheme, b := range s.Bytes {
		if !isSchemeWord(scheme) {
			scheme = "other" // the label comes from an agent
		}
		bytes[scheme] += float64(b)
	}
	for scheme, b := range bytes {
		counter(loadedDesc, b, scheme)
	}
	gauge(loadRateDesc, s.Rate)
	gauge(loadNowDesc, float64(s.InFlight), "ranges")
	gauge(loadNowDesc, float64(s.Stagings), "stagings")
	counter(stagingsDesc, float64(s.Staged), "ready")
	counter(stagingsDesc, float64(s.Failed), "failed")
	for _, c := range loaderCounts {
		counter(c.desc, c.of(s))
	}
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
