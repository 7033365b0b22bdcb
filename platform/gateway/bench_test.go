//go:build unix

package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/platform/controlstream"
)

// BenchmarkRequest sends a warm request of 1.2 KiB, answered with 1.4 KiB: direct, through
// the gateway, and through two plain reverse proxies in a row, as a separate ingress and
// activator would be. Client and engine are raw sockets, which cost little; cpu-ns/op is of
// the whole process, so a path's own cost is its difference to "direct".
func BenchmarkRequest(b *testing.B) {
	engine := rawEngine(b)
	w := newWorld(b, nil)
	f := newModel("rev-1", "mine", true, engine)
	ours := newModel("rev-2", "ours", false, engine)
	w.act.Publish(f, ours)
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{
		hostTable("mine.example.com", controlstream.Split{Percent: 100, Function: f.Name}),
		hostTable("ours.example.com", controlstream.Split{Percent: 100, Function: ours.Name}),
		hostTable("svc.example.com", controlstream.Split{Percent: 100, Address: engine}),
	}})
	twice := plainProxy(b, plainProxy(b, engine))
	for _, c := range []struct{ name, addr, host string }{
		{"direct", engine, "x"},
		{"function", w.public, "mine.example.com"},
		{"chat", w.public, "ours.example.com"},
		{"service", w.public, "svc.example.com"},
		{"two-proxies", twice, "x"},
	} {
		b.Run(c.name, func(b *testing.B) { askGateway(b, c.addr, c.host) })
	}
}

func askGateway(b *testing.B, addr, host string) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	body := `{"model":"x","messages":[{"role":"user","content":"` + strings.Repeat("hello world ", 95) + `"}]}`
	req := []byte(fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: "+
		"*/*\r\nUser-Agent: bench\r\nContent-Length: %d\r\n\r\n%s", host, len(body), body))
	br := bufio.NewReader(c)
	b.ReportAllocs()
	began := processorTime()
	for b.Loop() {
		if _, err := c.Write(req); err != nil {
			b.Fatal(err)
		}
		if !skipRaw(br) {
			b.Fatal("no answer")
		}
	}
	b.ReportMetric(float64((processorTime()-began).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// processorTime returns the CPU time that this process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func plainProxy(b *testing.B, addr string) string {
	p := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: addr})
			r.SetXForwarded()
		},
		Transport: &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true},
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &http.Server{Handler: p}
	go s.Serve(ln)
	b.Cleanup(func() { s.Close(); p.Transport.(*http.Transport).CloseIdleConnections() })
	return ln.Addr().String()
}

func rawEngine(b *testing.B) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	body := `{"id":"x","choices":[{"message":{"content":"` + strings.Repeat("word ", 260) + `"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`
	answer := []byte(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReader(c)
				for skipRaw(br) {
					if _, err := c.Write(answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return ln.Addr().String()
}

// skipRaw reads one message and discards it.
func skipRaw(br *bufio.Reader) bool {
	length, chunked := 0, false
	for {
		l, err := br.ReadSlice('\n')
		if err != nil {
			return false
		}
		if len(l) == 2 {
			break
		}
		name, value, _ := strings.Cut(string(l), ":")
		switch strings.ToLower(name) {
		case "content-length":
			length, _ = strconv.Atoi(strings.TrimSpace(value))
		case "transfer-encoding":
			chunked = true
		}
	}
	for chunked {
		l, err := br.ReadSlice('\n')
		if err != nil {
			return false
		}
		n, _ := strconv.ParseInt(strings.TrimSpace(string(l)), 16, 64)
		if br.Discard(int(n) + 2); n == 0 {
			return true
		}
	}
	_, err := io.CopyN(io.Discard, br, int64(length))
	return err == nil
}
