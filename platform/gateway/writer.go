package gateway

import (
	"bufio"
	"net"
	"net/http"
)

// writer is what an answer is written to.
type writer struct {
	http.ResponseWriter
	r        *http.Request
	to       string // what the request went to, for the metrics
	status   int    // that went out, 0 none yet
	hijacked bool   // the connection is a WebSocket's
}

// Unwrap is for [http.ResponseController].
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends a head. One of 1xx is not the last.
func (w *writer) WriteHeader(status int) {
	if status >= 200 && w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Hijack gives the connection away.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, b, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.hijacked, w.status = true, http.StatusSwitchingProtocols
	}
	return c, b, err
}

// Last ends the connection with this answer.
func (w *writer) Last() {
	if c := connOf(w.r.Context()); c != nil && w.r.ProtoMajor == 1 {
		c.last.Store(true)
	}
}
