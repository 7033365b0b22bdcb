package activator

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/browser"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
)

// fakeWaker is a platform that reports its calls.
type fakeWaker struct{ wake, nudge, ask chan string }

func (w fakeWaker) Wake(n functions.Name) string                 { w.wake <- n.String(); return "cs-1" }
func (w fakeWaker) Demand(...Demand)                             {}
func (w fakeWaker) Nudge(n functions.Name)                       { w.nudge <- n.String() }
func (w fakeWaker) ReportFailure(n functions.Name, id, _ string) { w.ask <- id }

func expectCall(t *testing.T, c chan string, description string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second): // the promise is one second, where nothing else runs
		t.Fatalf("no %s", description)
	}
}

// The same path on real sockets and on fiber, which the tests in virtual time
// do not use.
func TestOnRealSockets(t *testing.T) {
	keys, err := auth.Open(filepath.Join(t.TempDir(), "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	platform := fakeWaker{make(chan string, 100), make(chan string, 100), make(chan string, 100)}
	engines := upstream.New(upstream.Options{})
	defer engines.Close()
	a := New(Options{Waker: platform, Keys: keys, Engines: engines, Open: true, Timing: Timing{Silent: 20 * time.Millisecond}})
	srv := httpserver.NewFiberServer(httpserver.Options{Handler: browser.New(true, nil, nil).Wrap(a.Serve)})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		srv.Shutdown(ctx)
		<-served
	}()
	left := make(chan string, 10)
	eln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	engine := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		if strings.Contains(string(body), "endless") {
			fmt.Fprint(w, event1)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			left <- "engine"
			return
		}
		fmt.Fprint(w, streamed)
	})}
	go engine.Serve(eln)
	defer engine.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}}
	defer client.CloseIdleConnections()
	begin := func(ctx context.Context, body string) (*http.Response, error) {
		r, _ := http.NewRequestWithContext(ctx, "POST", "http://"+ln.Addr().String()+"/v1/chat/completions", strings.NewReader(body))
		return client.Do(r)
	}

	// Held, then left: noticed.
	a.Publish(testFunction("tiny"))
	ctx, cancel := context.WithCancel(t.Context())
	res, err := begin(ctx, streamRequest)
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(res.Body).ReadString('\n')
	if err != nil || line != ": thaw state=cold position=1\n" {
		t.Fatalf("%q %v", line, err)
	}
	expectCall(t, platform.wake, "wake")
	cancel()
	res.Body.Close()
	expectCall(t, platform.nudge, "nudge after the client left")
	if l := a.names.table.Lookup(testFunction("tiny").Name).Data.queue.Load(time.Now()); l.Queued != 0 || a.buffered.Load() != 0 {
		t.Fatalf("%+v", l)
	}

	// A hundred held, released by one publish.
	var wg sync.WaitGroup
	heads := make(chan string, 100)
	for range 100 {
		wg.Go(func() {
			res, err := begin(t.Context(), streamRequest)
			if err != nil {
				t.Error(err)
				heads <- ""
				return
			}
			heads <- ""
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || plainEvents(string(b)) != streamed {
				t.Errorf("%v %q", err, b)
			}
			wireRules(t, string(b))
		})
	}
	for range 100 {
		expectCall(t, heads, "head of a held stream")
	}
	a.Publish(readyAt(testFunction("tiny"), 64, eln.Addr().String()))
	wg.Wait()
	expectCall(t, platform.wake, "wake")
	if len(platform.wake) != 0 {
		t.Error("more than one wake")
	}

	// Streaming, then left: the engine learns it.
	ctx, cancel = context.WithCancel(t.Context())
	if res, err = begin(ctx, strings.Replace(streamRequest, "hello", "endless", 1)); err != nil {
		t.Fatal(err)
	}
	// The head goes out while the engine is still being asked: who is to hear of the end
	// is there once it has said something.
	for br, l := bufio.NewReader(res.Body), ""; !strings.HasPrefix(l, "data:"); {
		if l, err = br.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	res.Body.Close()
	expectCall(t, left, "cancel at the engine")
	if len(platform.ask) != 0 {
		t.Error("the replica is not to blame")
	}
}

// Old health checks speak HTTP/1.0 without Host, and proxies send absolute targets.
func TestOldClients(t *testing.T) {
	keys, err := auth.Open(filepath.Join(t.TempDir(), "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	a := New(Options{Waker: &testEnv{}, Keys: keys, Open: true})
	srv := httpserver.NewFiberServer(httpserver.Options{Handler: browser.New(true, nil, nil).Wrap(a.Serve)})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() {
		srv.Shutdown(t.Context())
		<-served
	}()
	stream := `{"model":"tiny","stream":true,"messages":[]}`
	for _, c := range []struct {
		raw, says string
		status    int
	}{
		{"GET /v1/models HTTP/1.0\r\n\r\n", `"object":"list"`, 200},
		{"GET /v1/models HTTP/1.0\r\nOrigin: http://evil.example\r\n\r\n", "origin_not_allowed", 403},
		{"GET /v1/models HTTP/1.1\r\n\r\n", "exactly one Host", 400},
		{"GET http://localhost:8080/v1/models HTTP/1.1\r\nHost: localhost:8080\r\nConnection: close\r\n\r\n", `"object":"list"`, 200},
		{"GET http://localhost/v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", "another host", 400},
		{"GET http://evil.example/v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", "misdirected_request", 421},
		{"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + fmt.Sprint(len(stream)) + "\r\n\r\n" + stream, "A stream needs HTTP/1.1", 400},
	} {
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(time.Minute))
		io.WriteString(conn, c.raw)
		answer, _ := io.ReadAll(conn)
		conn.Close()
		if !strings.HasPrefix(string(answer), fmt.Sprintf("HTTP/1.1 %d ", c.status)) || !strings.Contains(string(answer), c.says) {
			t.Errorf("%q: %s", c.raw, answer)
		}
	}
}
