package testkit

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Serve serves h until the test ends. A program that still runs then, with a request in
// flight, does not hold up the end: httptest's Close alone waits for it.
func Serve(t testing.TB, h http.Handler) *httptest.Server {
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}
