package nodeloader

import (
	"encoding/json"
	"net/http"

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

// Samples yields the node loader's own metrics. The controller sums up the nodes' stores
// and downloads from the heartbeats, as thaw_store_… and thaw_loader_….
func (d *Daemon) Samples(yield func(metric string, value float64, labels ...string)) {
	h := d.Health()
	connected := 0.0
	if h.Connected {
		connected = 1
	}
	yield("thaw_nodeloader_pods", float64(h.Pods))
	yield("thaw_nodeloader_connected", connected)
	yield("thaw_nodeloader_downloads", float64(len(d.slots)), "pod")
	yield("thaw_nodeloader_downloads", float64(h.Prefetches), "prefetch")
	yield("thaw_nodeloader_downloads_total", float64(d.counts.staged.Load()), "ready")
	yield("thaw_nodeloader_downloads_total", float64(d.counts.failed.Load()), "failed")
	yield("thaw_nodeloader_downloads_total", float64(d.counts.refused.Load()), "refused")
	yield("thaw_nodeloader_prefetch_total", float64(d.counts.used.Load()), "used")
	yield("thaw_nodeloader_prefetch_total", float64(d.counts.wasted.Load()), "wasted")
	for scheme, n := range d.o.Store.Stats().Bytes {
		yield("thaw_nodeloader_bytes_total", float64(n), scheme)
	}
	yield("thaw_nodeloader_store_bytes", float64(h.Store), "total")
	yield("thaw_nodeloader_store_bytes", float64(h.Used), "used")
}
