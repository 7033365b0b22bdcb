package sourcetest

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/thaw-dev/thaw/testkit"
)

// Connections are the open connections of a server.
type Connections struct {
	mu   sync.Mutex
	open map[net.Conn]bool
}

// CountConnections counts those of a server that has not started.
func CountConnections(srv *httptest.Server) *Connections {
	c := &Connections{open: map[net.Conn]bool{}}
	srv.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open[conn] = true; state == http.StateClosed || state == http.StateHijacked {
			delete(c.open, conn)
		}
	}
	return c
}

// CheckClosed closes a source, whose idle connections end then, and reports those that stay
// open: the body of an answer was not closed.
func (c *Connections) CheckClosed(t *testing.T, s interface{ Close() }) {
	t.Helper()
	s.Close()
	testkit.Eventually(t, "all connections end", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.open) == 0
	})
}
