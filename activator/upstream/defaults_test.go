package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestDefaults: what holds where Options say nothing.
func TestDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := okHello
		var opened []net.Conn
		hangs := false
		c := New(Options{Dial: func(ctx context.Context, _ string) (net.Conn, error) {
			if hangs {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			local, remote := net.Pipe()
			opened = append(opened, local)
			go func() {
				defer remote.Close()
				for br := bufio.NewReader(remote); ; {
					if _, err := http.ReadRequest(br); err != nil {
						return
					}
					io.WriteString(remote, answer)
				}
			}()
			return local, nil
		}})
		ask := func() error {
			r, err := c.Do(t.Context(), postRequest("e:1", "x"))
			if err == nil {
				_, err = io.ReadAll(r)
				r.Close()
			}
			return err
		}
		for _, pause := range []time.Duration{0, 3900 * time.Millisecond, 3900 * time.Millisecond} {
			time.Sleep(pause)
			if err := ask(); err != nil || len(opened) != 1 {
				t.Errorf("after %v: %v, %d connections", pause, err, len(opened))
			}
		}
		time.Sleep(4100 * time.Millisecond)
		if err := opened[0].SetDeadline(time.Time{}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("a connection that was idle for 4 s: %v", err)
		}
		head := func(size int) string {
			const begin, end = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: ", "\r\n\r\n"
			return begin + strings.Repeat("y", size-len(begin)-len(end)) + end
		}
		for size, fits := range map[int]bool{32 << 10: true, 33 << 10: false, 70 << 10: false} {
			answer = head(size)
			if err := ask(); (err == nil) != fits || !fits && (!errors.Is(err, ErrProtocol) ||
				!strings.Contains(err.Error(), "more than 32768 bytes")) {
				t.Errorf("a head of %d bytes: %v", size, err)
			}
		}
		c.CloseIdle()
		began := time.Now()
		hangs = true
		if err := ask(); !errors.Is(err, ErrDial) || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		hangs, answer = false, okHello
		if err := ask(); err != nil {
			t.Errorf("after CloseIdle: %v", err)
		}
		c.Close()
		dials := len(opened)
		if err := ask(); !errors.Is(err, ErrDial) || len(opened) != dials {
			t.Errorf("after Close: %v, %d dials", err, len(opened)-dials)
		}
	})
}

// TestErrorText: an error has its kind, address and cause in its text and its chain.
func TestErrorText(t *testing.T) {
	cause := errors.New("no route")
	err := error(&Error{Addr: "e:1", Kind: ErrDial, Err: cause})
	if text := err.Error(); text != "upstream: no connection (e:1): no route" {
		t.Error(text)
	}
	if !errors.Is(err, ErrDial) || !errors.Is(err, cause) || errors.Is(err, ErrSilent) {
		t.Error("its chain")
	}
}

// TestSlowReader: an engine may take a second for each MiB of a request, beside the wait that
// each request has.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 50 << 20
		c := New(Options{Dial: func(context.Context, string) (net.Conn, error) {
			local, remote := net.Pipe()
			go func() {
				defer remote.Close()
				p := make([]byte, 1<<20)
				for n := 0; n < size; time.Sleep(time.Second) {
					m, err := io.ReadFull(remote, p)
					if n += m; err != nil {
						return
					}
				}
				io.ReadAtLeast(remote, p, 1) // the head was no part of size
				io.WriteString(remote, okHello)
			}()
			return local, nil
		}})
		defer c.Close()
		q := postRequest("e:1", "")
		q.Body, q.Bound = [][]byte{make([]byte, size)}, time.Hour
		r, err := c.Do(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		io.ReadAll(r)
		r.Close()
	})
}

// TestRedirectedPaths: a redirect is followed to the same scheme, host and port only, however
// these are written.
func TestRedirectedPaths(t *testing.T) {
	for _, x := range []struct {
		secure         bool
		addr, prefix   string
		path, location string
		want           string
	}{
		{addr: "e:80", path: "/a", location: "http://e/a/", want: "/a/"},
		{addr: "e:443", path: "/a", location: "https://e/a/"},
		{addr: "e:443", secure: true, path: "/a", location: "https://e/a/", want: "/a/"},
		{addr: "e:80", secure: true, path: "/a", location: "http://e/a/"},
		{addr: "e:80", secure: true, path: "/a", location: "https://e/a/"},
		{addr: "e:443", path: "/a", location: "http://e/a/"},
		{addr: "e:8000", path: "/a", location: "http://e/a/"},
		{addr: "e:8000", path: "/a", location: "http://E:8000/a/", want: "/a/"},
		{addr: "e:8000", path: "/a", location: "HTTP://e:8000/a/", want: "/a/"},
		{addr: "e:8000", path: "/a", location: "//e:8000/a/", want: "/a/"},
		{addr: "e:8000", path: "/a", location: "//e:8001/a/"},
		{addr: "[::1]:80", path: "/a", location: "http://[::1]/a/", want: "/a/"},
		{addr: "e:80", prefix: "/replicas/r", path: "/a", location: "/a/"},
		{addr: "e:80", path: "/a", location: "/a/#x"},
		{addr: "e:80", path: "/a", location: "mailto:a"},
		{addr: "e:80", path: "/a", location: "http:/a/"},
		{addr: "e:80", path: "/a?x=1&y=2", location: "/a/?x=1&y=2", want: "/a/?x=1&y=2"},
		{addr: "e:80", path: "/a?x=1", location: "/a/"},
		{addr: "e:80", path: "/a", location: "/a/?x=1"},
		{addr: "e:80", path: "/a%20b", location: "/a%20b/", want: "/a%20b/"},
		{addr: "e:80", path: "/a", location: "/a"},
		{addr: "e:80", path: "/a", location: "a/"},
		{addr: "e:80", path: "/", location: ""},
		{addr: "e:80", path: "/", location: "http://e"},
	} {
		r := &Request{Addr: x.addr, Secure: x.secure, Prefix: x.prefix, Path: x.path}
		for status, follows := range map[int]bool{301: false, 302: false, 303: false, 307: true, 308: true, 200: false} {
			got, ok := slashRedirect(r, &Response{Status: status, Fields: []Field{{"location", x.location}}})
			want := ""
			if follows {
				want = x.want
			}
			if got != want || ok != (want != "") {
				t.Errorf("%s: %q, %v, want %q", fmt.Sprintf("%+v of status %d", x, status), got, ok, want)
			}
		}
	}
}
