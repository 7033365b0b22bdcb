package rude

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

func dial(t *testing.T, e *Engine) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", e.Addr)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(testkit.Timeout))
	t.Cleanup(func() { c.Close() })
	return c
}

const request = "POST /v1/x HTTP/1.1\r\nHost: e\r\nContent-Length: 2\r\n\r\nhi"

// TestAnswers: what the table says is on the wire, byte for byte, one answer a request.
func TestAnswers(t *testing.T) {
	e := Start(t, Plain(400, "text/plain", "no", "Retry-After: 7"), Chunked(200, "text/event-stream", true, "data: x\n\n"),
		Answer{{Write: "SSH-2.0\r\n"}, {Then: Close}})
	c := dial(t, e)
	io.WriteString(c, request)
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != 400 || res.Header.Get("Retry-After") != "7" || string(body) != "no" {
		t.Errorf("%+v %s", res, body)
	}
	io.WriteString(c, request+request)
	rest, err := io.ReadAll(in)
	if want := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n9\r\ndata: " +
		"x\n\n\r\n0\r\n\r\nSSH-2.0\r\n"; string(rest) != want || err != nil {
		t.Errorf("%q %v", rest, err)
	}
	got := e.Requests()
	if len(got) != 3 || got[2].Conn != 1 || got[0].Method != "POST" || got[0].Path != "/v1/x" || got[0].Body != "hi" {
		t.Errorf("%+v", got)
	}
	c = dial(t, e)
	io.WriteString(c, request)
	if rest, _ := io.ReadAll(c); string(rest) != "SSH-2.0\r\n" { // the last one repeats
		t.Errorf("%q", rest)
	}
	if got := e.Requests(); len(got) != 4 || got[3].Conn != 2 {
		t.Errorf("%+v", got)
	}
}

// TestReset: the peer sees a reset connection, not an end.
func TestReset(t *testing.T) {
	e := Start(t, Answer{{Write: "HTTP/1.1 200 OK\r\n"}, {Then: Reset}})
	c := dial(t, e)
	io.WriteString(c, request)
	if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

// TestPauseAndHang: time passes between the steps, and a hanging engine waits for its peer.
func TestPauseAndHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		done := make(chan time.Time)
		began := time.Now()
		go func() {
			Answer{{Write: "a"}, {Pause: time.Minute, Write: "b"}, {Then: Hang}, {Write: "never"}}.Play(b)
			done <- time.Now()
		}()
		buf := make([]byte, 2)
		if _, err := io.ReadFull(a, buf); err != nil || string(buf) != "ab" || time.Since(began) != time.Minute {
			t.Errorf("%q %v after %v", buf, err, time.Since(began))
		}
		time.Sleep(time.Minute)
		a.Close()
		if end := <-done; end.Sub(began) != 2*time.Minute {
			t.Error(end.Sub(began))
		}
	})
}

// TestRows: each row has a name of its own, and states what is right.
func TestRows(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rows() {
		if seen[r.Name] || !strings.HasPrefix(r.ID, "E") || len(r.Answer) == 0 || r.Status == 0 || r.Requests == 0 {
			t.Errorf("%+v", r)
		}
		seen[r.Name] = true
	}
}
