package nodeloader

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/thaw-dev/thaw/functions"
)

// Health is the body of /readyz.
type Health struct {
	Node       string          `json:"node"`
	Ready      bool            `json:"ready"`      // shims are served
	Connected  bool            `json:"connected"`  // to a controller
	Pods       int             `json:"pods"`       // connected pods
	Prefetches int             `json:"prefetches"` // downloads that no pod waits for
	Used       functions.Bytes `json:"used"`
	Store      functions.Bytes `json:"store"`
}

// Health returns the present state.
func (d *Daemon) Health() Health {
	use, _ := d.o.Store.Usage()
	h := Health{Node: d.o.Node, Ready: d.serving.Load(), Connected: d.o.Connected(), Used: use.Used, Store: use.Bytes}
	d.mu.Lock()
	defer d.mu.Unlock()
	h.Pods, h.Prefetches = len(d.shims), len(d.prefetches)
	return h
}

// Handler answers /healthz while the process lives, /readyz once pods are served (with or
// without a controller), and /metrics.
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

// The loader's own metrics. The controller sums up the nodes' stores and downloads from
// the heartbeats, as thaw_store_… and thaw_loader_….
var (
	podsDesc       = prometheus.NewDesc("thaw_nodeloader_pods", "Pods connected to the node loader.", nil, nil)
	connectedDesc  = prometheus.NewDesc("thaw_nodeloader_connected", "1 while the node loader is connected to a controller, else 0.", nil, nil)
	downloadsDesc  = prometheus.NewDesc("thaw_nodeloader_downloads", "Downloads in progress; kind is pod or prefetch (no pod waits for it).", []string{"kind"}, nil)
	downloadedDesc = prometheus.NewDesc("thaw_nodeloader_downloads_total", "Finished downloads for pods; result is ready, failed or refused.", []string{"result"}, nil)
	prefetchDesc   = prometheus.NewDesc("thaw_nodeloader_prefetch_total", "Prefetches by result: used (a pod took the checkpoint) or wasted.", []string{"result"}, nil)
	bytesDesc      = prometheus.NewDesc("thaw_nodeloader_bytes_total", "Bytes downloaded into the node's store, by source scheme; peer is other nodes.", []string{"source"}, nil)
	storeDesc      = prometheus.NewDesc("thaw_nodeloader_store_bytes", "Size of the node's store; kind is total or used.", []string{"kind"}, nil)
	descriptions   = []*prometheus.Desc{podsDesc, connectedDesc, downloadsDesc, downloadedDesc, prefetchDesc, bytesDesc, storeDesc}
)

// Describe implements prometheus.Collector.
func (d *Daemon) Describe(ch chan<- *prometheus.Desc) {
	for _, x := range descriptions {
		ch <- x
	}
}

// Collect implements prometheus.Collector.
func (d *Daemon) Collect(ch chan<- prometheus.Metric) {
	h := d.Health()
	gauge := func(x *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(x, prometheus.GaugeValue, v, labels...)
	}
	counter := func(x *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(x, prometheus.CounterValue, float64(v), labels...)
	}
	connected := 0.0
	if h.Connected {
		connected = 1
	}
	gauge(podsDesc, float64(h.Pods))
	gauge(connectedDesc, connected)
	gauge(downloadsDesc, float64(len(d.slots)), "pod")
	gauge(downloadsDesc, float64(h.Prefetches), "prefetch")
	counter(downloadedDesc, d.counts.staged.Load(), "ready")
	counter(downloadedDesc, d.counts.failed.Load(), "failed")
	counter(downloadedDesc, d.counts.refused.Load(), "refused")
	counter(prefetchDesc, d.counts.used.Load(), "used")
	counter(prefetchDesc, d.counts.wasted.Load(), "wasted")
	for scheme, n := range d.o.Store.Stats().Bytes {
		counter(bytesDesc, int64(n), scheme)
	}
	gauge(storeDesc, float64(h.Store), "total")
	gauge(storeDesc, float64(h.Used), "used")
}
