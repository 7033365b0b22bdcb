package engine

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// rudeEngine answers requests with raw bytes over pipes, so that its time may be that of a
// bubble. It serves from a time on; before it refuses connections.
type rudeEngine struct {
	t      *testing.T
	serves time.Time
	answer func(c net.Conn, r *http.Request) // closes c, or leaves it open
}

// rudeClient is the client of such an engine.
func rudeClient(t *testing.T, command Command, answer func(c net.Conn, r *http.Request)) (*Client, *rudeEngine) {
	if command.Engine == "" {
		command.Engine = functions.EngineCommand
	}
	command.URL, command.Name = "http://127.0.0.1:1", "m"
	if command.Health == "" {
		command.Health = "/health"
	}
	e := New(command)
	s := &rudeEngine{t: t, answer: answer}
	e.http.Transport = &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: s.dial}
	return e, s
}

func (e *rudeEngine) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if time.Now().Before(e.serves) {
		return nil, syscall.ECONNREFUSED
	}
	client, c := net.Pipe()
	go func() {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			c.Close()
			return
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		e.answer(c, r)
	}()
	return client, nil
}

// say writes a whole answer and closes.
func say(c net.Conn, status, fields, body string) {
	io.WriteString(c, "HTTP/1.1 "+status+"\r\n"+fields+"Connection: close\r\n\r\n"+body)
	c.Close()
}
