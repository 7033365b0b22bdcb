package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

const (
	event = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}` + "\n\n"
	final = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	done  = "data: [DONE]\n\n"
)

// TestStreams: OpenAI API calls, by host and by model, over both protocols: a held stream
// gets progress comments, then the engine's events as they come; a client that disconnects
// frees its place and cancels the engine's request; a broken stream ends with an error.
func TestStreams(t *testing.T) {
	w := newWorld(t, func(_ *Options, a *activator.Options) {
		a.Timing.Silent, a.Timing.Comment = 20*time.Millisecond, 50*time.Millisecond
	})
	say, left := make(chan string), make(chan struct{}, 1)
	addr := backend(t, func(rw http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		rw.Header().Set("Content-Type", "text/event-stream")
		for {
			select {
			case s := <-say:
				if s == "" {
					return
				}
				io.WriteString(rw, s)
				rw.(http.Flusher).Flush()
			case <-r.Context().Done():
				left <- struct{}{}
				return
			}
		}
	})
	cold, warm := newModel("rev-1", "mine", false), newModel("rev-1", "mine", false, addr)
	w.act.Publish(cold)
	splits := []controlstream.Split{{Percent: 100, Function: functionName("rev-1")}}
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{{Name: "mine", Paths: []controlstream.Path{{Splits: splits}}}}, Models: []controlstream.Model{{Name: functionName("mine"), Splits: splits}}})
	demand := func(active, queued int) func() bool {
		return func() bool {
			d, _ := w.act.DemandOf(functionName("rev-1"))
			return d.Active == active && d.Queued == queued
		}
	}
	ask := func(ctx context.Context, c *http.Client, host string) (*http.Response, *bufio.Reader) {
		r, _ := http.NewRequestWithContext(ctx, "POST", "http://"+w.public+"/v1/chat/completions", strings.NewReader(`{"model":"mine","stream":true,"messages":[]}`))
		r.Host = host
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatal(res.Status, res.Header)
		}
		return res, bufio.NewReader(res.Body)
	}
	line := func(br *bufio.Reader) string {
		for {
			l, err := br.ReadString('\n')
			if err != nil {
				return err.Error()
			}
			if l != "\n" && !strings.HasPrefix(l, ": thaw") {
				return l + "\n"
			}
		}
	}
	for proto, c := range map[string]*http.Client{"HTTP/1.1": w.client, "HTTP/2": h2cClient(t)} {
		for _, host := range []string{"mine", "elsewhere"} {
			res, br := ask(context.Background(), c, host)
			for range 2 {
				if l, err := br.ReadString('\n'); err != nil || !strings.HasPrefix(l, ": thaw state=") {
					t.Fatalf("%s %s: %q %v", proto, host, l, err)
				}
			}
			w.act.Publish(warm)
			for _, e := range []string{event, event, final} {
				say <- e
				if l := line(br); l != e {
					t.Errorf("%s %s: %q", proto, host, l)
				}
			}
			say <- done
			say <- ""
			if a, b := line(br), line(br); a != done || b != "EOF" {
				t.Errorf("%s %s: %q %q", proto, host, a, b)
			}
			res.Body.Close()
			w.await(demand(0, 0))

			// A client that disconnects in the middle cancels the engine's request.
			ctx, cancel := context.WithCancel(context.Background())
			go func() { say <- event }()
			res, br = ask(ctx, c, host)
			line(br)
			cancel()
			<-left
			w.await(demand(0, 0))
			res.Body.Close()

			// A client disconnects while its request is held.
			w.act.Publish(cold)
			ctx, cancel = context.WithCancel(context.Background())
			res, _ = ask(ctx, c, host)
			w.await(demand(0, 1))
			cancel()
			w.await(demand(0, 0))
			res.Body.Close()

			// A broken stream has an error and no end mark.
			w.act.Publish(warm)
			go func() { say <- event }()
			res, br = ask(context.Background(), c, host)
			if l := line(br); l != event {
				t.Errorf("%q", l)
			}
			say <- ""
			if a, b := line(br), line(br); !strings.Contains(a, `"code":"engine_crashed"`) || b == "EOF" {
				t.Errorf("%s %s: %q %q", proto, host, a, b)
			}
			res.Body.Close()
			c.CloseIdleConnections() // closed by the server, which a client may notice too late
			w.act.Remove(cold.Name)
			w.act.Publish(cold)
		}
	}
	// A broken stream also closes its connection, by FIN and without the chunk that would
	// make the body complete.
	w.act.Publish(warm)
	c, err := net.Dial("tcp", w.public)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	body := `{"stream":true,"messages":[]}`
	fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: mine\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	say <- event
	br := bufio.NewReader(c)
	for l := ""; !strings.HasPrefix(l, "data:"); {
		if l, err = br.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	say <- ""
	if b, err := io.ReadAll(br); err != nil || !strings.HasSuffix(string(b), "}}\n\n\r\n") {
		t.Errorf("%q %v", b, err)
	}
}
