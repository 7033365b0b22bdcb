package httpserver

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// BenchmarkServer is a request of 1.2 KiB and its answer of 1.5 KiB over a
// loopback socket, keep-alive; the client is a few system calls.
func BenchmarkServer(b *testing.B) {
	answer := []byte(strings.Repeat("y", 1500))
	for _, body := range bodies {
		for _, watched := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/watched=%v", body.name, watched), func(b *testing.B) {
				srv := body.make(Options{Handler: func(r *Request, w *Response) {
					if watched {
						r.Context()
					}
					w.Set("content-type", "application/json")
					w.Body = answer
				}})
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- srv.Serve(ln) }()
				c, err := net.Dial("tcp", ln.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				req := []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: gw.example.com\r\nAccept: application/json\r\nContent-Type: " +
					"application/json\r\nAuthorization: Bearer sk-0123456789abcdef0123456789abcdef\r\nUser-Agent: OpenAI/Python " +
					"1.99.1\r\nX-Stainless-Lang: python\r\nX-Stainless-Package-Version: 1.99.1\r\nX-Stainless-Os: Linux\r\nX-Stainless-Arch: " +
					"x64\r\nX-Stainless-Runtime: CPython\r\nX-Stainless-Async: false\r\nContent-Length: 1200\r\n\r\n" + strings.Repeat("x", 1200))
				p := make([]byte, 4096)
				c.Write(req)
				size, _ := c.Read(p)
				b.ReportAllocs()
				for b.Loop() {
					c.Write(req)
					if _, err := io.ReadFull(c, p[:size]); err != nil {
						b.Fatal(err)
					}
				}
				c.Close()
				srv.Shutdown(b.Context())
				<-done
			})
		}
	}
}

func BenchmarkScan(b *testing.B) {
	raw := []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: gw.example.com\r\nAccept: application/json\r\nContent-Type: " +
		"application/json\r\nAuthorization: Bearer sk-0123456789abcdef0123456789abcdef\r\nUser-Agent: OpenAI/Python " +
		"1.99.1\r\nX-Stainless-Lang: python\r\nX-Stainless-Package-Version: 1.99.1\r\nX-Stainless-Os: Linux\r\nX-Stainless-Arch: " +
		"x64\r\nX-Stainless-Runtime: CPython\r\nX-Stainless-Async: false\r\nContent-Length: 1200\r\n\r\n")
	fields := make([]fieldSpan, 0, 32)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if _, e := parseHead(raw, fields[:0]); e != nil {
			b.Fatal(e)
		}
	}
}
