package gateway

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics holds the gateway's metrics: few series, whatever clients request.
type metrics struct{ requests *prometheus.CounterVec }

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "thaw_gateway_requests_total",
		Help: "Requests by what they went to (model, function, service, controller, https, probe, nothing) and status; 0 is a client that left, or an answer that was broken off before its head.",
	}, []string{"to", "code"})}
	if r != nil {
		r.MustRegister(m.requests)
	}
	return m
}

func (m *metrics) count(to string, status int) {
	m.requests.WithLabelValues(to, strconv.Itoa(status)).Inc()
}
