package testkit

import (
	"net"
	"net/http"
	"testing"
)

// TestServeEnds: a client whose request is still handled at the test's end keeps nothing.
func TestServeEnds(t *testing.T) {
	asked := make(chan struct{})
	var client net.Conn
	t.Run("a test", func(t *testing.T) {
		s := Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(asked)
			<-r.Context().Done()
		}))
		var err error
		if client, err = net.Dial("tcp", s.Listener.Addr().String()); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write([]byte("GET / HTTP/1.1\r\nHost: test\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		<-asked
	})
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("the handler answered")
	}
	client.Close()
}
