package nodeloader

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/thaw-dev/thaw/functions"
)

// Health is what /readyz answers.
type Health struct {
	Node   string          `json:"node"`
	Ready  bool            `json:"ready"`  // pods are answered
	Linked bool            `json:"linked"` // the controller hears us
	Pods   int             `json:"pods"`   // that are connected
	Ahead  int             `json:"ahead"`  // stagings that no pod waits for
	Used   functions.Bytes `json:"used"`
	Store  functions.Bytes `json:"store"`
}

// Health now.
func (d *Daemon) Health() Health {
	use, _ := d.o.Shelf.Use()
	h := Health{Node: d.o.Node, Ready: d.up.Load(), Linked: d.o.Linked(), Used: use.Used, Store: use.Bytes}
	d.mu.Lock()
	defer d.mu.Unlock()
	h.Pods, h.Ahead = len(d.shims), len(d.ahead)
	return h
}

// Handler answers /healthz while the process lives, /readyz once pods are answered
// (whether or not there is a controller), and /metrics by metrics.
func (d *Daemon) Handler(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		h := d.Health()
		w.Header().Set("Content-Type", "application/json")
		if !h.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(h)
	})
	mux.Handle("GET /metrics", metrics)
	return mux
}

// The loader's own numbers. What nodes have and load altogether the controller
// counts, from the heartbeats, as thaw_store_… and thaw_loader_….
var (
	podsDesc     = prometheus.NewDesc("thaw_node_pods", "Pods that are connected to the node's loader.", nil, nil)
	linkedDesc   = prometheus.NewDesc("thaw_node_linked", "1 while the controller hears the node's loader.", nil, nil)
	runningDesc  = prometheus.NewDesc("thaw_node_stagings", "Stagings under way; kind is pod or ahead (no pod waits for it).", []string{"kind"}, nil)
	stagedDesc   = prometheus.NewDesc("thaw_node_stagings_total", "Stagings for pods that ended; result is ready, failed or refused.", []string{"result"}, nil)
	aheadDesc    = prometheus.NewDesc("thaw_node_ahead_total", "Stagings with no pod waiting; result is used (a pod came) or vain.", []string{"result"}, nil)
	fetchedDesc  = prometheus.NewDesc("thaw_node_bytes_total", "Bytes brought into the node's store, by the source's scheme; peer is other nodes.", []string{"source"}, nil)
	storeDesc    = prometheus.NewDesc("thaw_node_store_bytes", "The node's store; kind is total or used.", []string{"kind"}, nil)
	descriptions = []*prometheus.Desc{podsDesc, linkedDesc, runningDesc, stagedDesc, aheadDesc, fetchedDesc, storeDesc}
)

// Describe makes a Daemon a prometheus.Collector.
func (d *Daemon) Describe(ch chan<- *prometheus.Desc) {
	for _, x := range descriptions {
		ch <- x
	}
}

// Collect makes a Daemon a prometheus.Collector.
func (d *Daemon) Collect(ch chan<- prometheus.Metric) {
	h := d.Health()
	gauge := func(x *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(x, prometheus.GaugeValue, v, labels...)
	}
	counter := func(x *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(x, prometheus.CounterValue, float64(v), labels...)
	}
	linked := 0.0
	if h.Linked {
		linked = 1
	}
	gauge(podsDesc, float64(h.Pods))
	gauge(linkedDesc, linked)
	gauge(runningDesc, float64(len(d.turns)), "pod")
	gauge(runningDesc, float64(h.Ahead), "ahead")
	counter(stagedDesc, d.counts.staged.Load(), "ready")
	counter(stagedDesc, d.counts.failed.Load(), "failed")
	counter(stagedDesc, d.counts.refused.Load(), "refused")
	counter(aheadDesc, d.counts.used.Load(), "used")
	counter(aheadDesc, d.counts.vain.Load(), "vain")
	for scheme, n := range d.o.Shelf.Stats().Bytes {
		counter(fetchedDesc, int64(n), scheme)
	}
	gauge(storeDesc, float64(h.Store), "total")
	gauge(storeDesc, float64(h.Used), "used")
}
