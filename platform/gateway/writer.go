package gateway

import (
	"bufio"
	"cmp"
	"net"
	"net/http"
)

// writer is the ResponseWriter of a request, with what is recorded of its response.
type writer struct {
	http.ResponseWriter
	r        *http.Request
	to       string // target of the request, for the metrics
	status   int    // status sent to the client; 0: none yet
	hijacked bool   // the connection became a WebSocket
}

func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends a head. A 1xx head is not the last one.
func (w *writer) WriteHeader(status int) {
	if status >= 200 && w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(p []byte) (int, error) {
	w.status = cmp.Or(w.status, http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// Hijack hands the connection to the caller.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, b, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.hijacked, w.status = true, http.StatusSwitchingProtocols
	}
	return c, b, err
}

// OnFailureSent has the connection end by FIN after this response, which reports its failure.
func (w *writer) OnFailureSent() {
	if c := connOf(w.r.Context()); c != nil && w.r.ProtoMajor == 1 {
		c.last.Store(true)
	}
}
