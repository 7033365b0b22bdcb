package controlstream

import "github.com/prometheus/client_golang/prometheus"

var (
	linksDesc = prometheus.NewDesc("thaw_control_streams", "Links there are, by the kind of peer.", []string{"kind"}, nil)
	awayDesc  = prometheus.NewDesc("thaw_activators_in_grace", "Activators whose link has ended and whose requests still count.", nil, nil)
)

// Describe implements prometheus.Collector.
func (h *Hub) Describe(out chan<- *prometheus.Desc) {
	out <- linksDesc
	out <- awayDesc
}

// Collect implements prometheus.Collector.
func (h *Hub) Collect(out chan<- prometheus.Metric) {
	h.mu.Lock()
	there, away := map[Kind]int{}, 0
	for kind, of := range h.peers {
		for _, p := range of {
			if p.lost.IsZero() {
				there[kind]++
			} else {
				away++
			}
		}
	}
	h.mu.Unlock()
	for _, kind := range []Kind{KindActivator, KindNode} {
		out <- prometheus.MustNewConstMetric(linksDesc, prometheus.GaugeValue, float64(there[kind]), string(kind))
	}
	out <- prometheus.MustNewConstMetric(awayDesc, prometheus.GaugeValue, float64(away))
}
