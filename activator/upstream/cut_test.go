package upstream

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
)

// After AbortThrough of an address, requests that wait for a head, read a body or reuse an idle
// connection fail at once as if the engine had died; later requests dial anew, and other
// addresses are unaffected.
func TestAbortRequests(t *testing.T) {
	reached := make(chan struct{}, 8)
	silent := func(c net.Conn, _ *http.Request, body []byte, _ int) bool {
		switch string(body) {
		case "ok":
			io.WriteString(c, okHello)
			return true
		case "stream":
			io.WriteString(c, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
		}
		reached <- struct{}{}
		c.Read(make([]byte, 1))
		return false
	}
	cutEngine, other := newEngine(t, silent), newEngine(t, silent)
	c := client(t, Options{})
	expectBody := func(addr string) {
		t.Helper()
		r, err := c.Do(t.Context(), postRequest(addr, "ok"))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r); string(b) != "hello" || err != nil {
			t.Errorf("%q %v", b, err)
		}
		r.Close()
	}
	expectBody(cutEngine.addr) // leaves an idle connection, which "wait" gets
	expectBody(other.addr)
	var r *Response
	ended := make(chan error, 3)
	go func() {
		_, err := c.Do(t.Context(), postRequest(cutEngine.addr, "wait"))
		ended <- err
	}()
	<-reached
	if s, err := c.Do(t.Context(), postRequest(cutEngine.addr, "stream")); err != nil {
		t.Fatal(err)
	} else {
		r = s
	}
	r.Read(make([]byte, 10))
	go func() {
		_, err := r.Read(make([]byte, 10))
		r.Close()
		ended <- err
	}()
	<-reached
	otherStream, err := c.Do(t.Context(), postRequest(other.addr, "stream"))
	if err != nil {
		t.Fatal(err)
	}
	otherStream.Read(make([]byte, 10))
	c.AbortThrough(cutEngine.addr)
	for range 2 {
		if err := <-ended; !errors.Is(err, ErrCut) || !errors.Is(err, ErrNoAnswer) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
	}
	before := cutEngine.conns.Load()
	expectBody(cutEngine.addr)
	if cutEngine.conns.Load() != before+1 {
		t.Error("a connection outlived the cut")
	}
	otherStream.LimitSilence(1)
	if _, err := otherStream.Read(make([]byte, 10)); !errors.Is(err, ErrSilent) {
		t.Errorf("another address was cut too: %v", err)
	}
	otherStream.Close()
	c.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.peers) != 0 {
		t.Errorf("closed connections are kept in the books: %v", c.peers)
	}
}
