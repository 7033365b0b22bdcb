package load

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit/fake"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func engine(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- fake.New(fake.Options{}).Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

func TestClosed(t *testing.T) {
	addr := engine(t)
	for _, c := range []struct {
		name    string
		request Request
		want    []byte
		bad     int
	}{
		{"plain", Request{Model: "fake", Size: 1024}, fake.PlainBody(), 0},
		{"stream", Request{Model: "fake", Size: 10, Stream: true}, fake.StreamBody(64), 0},
		{"paced", Request{Model: "fake", Stream: true, Prompt: "@fake tokens=3 delay=1ms"}, fake.StreamBody(3), 0},
		{"wrong", Request{Model: "fake"}, []byte("something else"), 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, err := Closed(t.Context(), addr, c.request.Bytes(), 4, 50, Exactly(c.want))
			if err != nil || o.Bad != c.bad || (c.bad == 0) != (o.FirstBad == nil) {
				t.Errorf("%+v %v", o, err)
			}
		})
	}
}

func TestClosedWithoutServer(t *testing.T) {
	o, err := Closed(t.Context(), "127.0.0.1:1", nil, 2, 10, Exactly(nil))
	if err != nil || o.Bad == 0 || o.FirstBad == nil {
		t.Errorf("%+v %v", o, err)
	}
}

func TestClosedEndsWithContext(t *testing.T) {
	addr := engine(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Closed(ctx, addr, Request{Stream: true, Prompt: "@fake delay=10m"}.Bytes(), 4, 1000, Exactly(nil)); err == nil {
		t.Error("no error")
	}
}

// script answers each connection with the next answer and closes it.
func script(t *testing.T, answers ...string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, a := range answers {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 4096)
			if _, err := c.Read(buf); err == nil {
				_, _ = io.WriteString(c, a)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-ended })
	return ln.Addr().String()
}

func TestWrongAnswers(t *testing.T) {
	for _, answer := range []string{
		"",
		"nonsense\r\n\r\n",
		"HTTP/1.1 2x0 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
		"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab",
		"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
		"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
	} {
		k, err := Dial(t.Context(), script(t, answer))
		if err != nil {
			t.Fatal(err)
		}
		if a, err := k.Do(t.Context(), []byte("GET / HTTP/1.1\r\n\r\n")); err == nil {
			t.Errorf("%q was read as %+v", answer, a)
		}
		k.Close()
	}
}

func TestHasText(t *testing.T) {
	for s, want := range map[string]bool{
		": thaw state=loading\n":                                                      false,
		`data: {"delta":{"role":"assistant","content":""}}`:                           false,
		`data: {"delta":{"content":""}}` + "\n\n" + `data: {"delta":{"content":"a"}}`: true,
		`data: {"choices":[{"text":" a"}]}`:                                           true,
		`data: {"choices":[{"text":""}]}`:                                             false,
		`data: {"choices": [{"delta": {"content": "Hello"}}]}`:                        true,
		`data: {"choices": [{"text" :	"\n"}]}`:                                        true,
		`data: {"choices": [{"delta": {"content": ""}}]}`:                             false,
		`data: {"choices": [{"delta": {"content": null}}]}`:                           false,
		`data: {"content":"`:                                                          false,
	} {
		if hasText([]byte(s)) != want {
			t.Errorf("hasText(%s) is not %v", s, want)
		}
	}
}

func TestHeadersCommentsAndReconnect(t *testing.T) {
	held := "HTTP/1.1 200 OK\r\nX-Request-Id: r1\r\nthaw-cold-start: c1\r\nTransfer-Encoding: chunked\r\n\r\n" +
		"d\r\n: thaw state\n\r\n15\r\ndata: {\"content\":\"x\"}\r\n0\r\n\r\n"
	addr := script(t, held, strings.Replace(held, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1), held)
	k, err := Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { k.Close() }()
	for range 3 {
		a, err := k.Do(t.Context(), []byte("GET / HTTP/1.1\r\n\r\n"))
		if err != nil {
			t.Fatal(err)
		}
		if a.RequestID != "r1" || a.ColdStart != "c1" || a.First.IsZero() {
			t.Errorf("%+v", a)
		}
		if err := Exactly([]byte(`data: {"content":"x"}`))(a); err != nil {
			t.Error(err)
		}
	}
}
