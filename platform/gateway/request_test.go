package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// h2cClient returns a client that speaks HTTP/2 without TLS only.
func h2cClient(t testing.TB) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// h2cBackend starts a server of HTTP/1.1 and HTTP/2 without TLS.
func h2cBackend(t testing.TB, h http.HandlerFunc) string {
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestHeads(t *testing.T) {
	w := newWorld(t, nil)
	var seen http.Header
	var host string
	addr := backend(t, func(rw http.ResponseWriter, r *http.Request) {
		seen, host = r.Header.Clone(), r.Host
		rw.Header().Set("Connection", "X-Secret")
		rw.Header().Set("X-Secret", "hop")
		rw.Header().Set("Keep-Alive", "timeout=5")
		rw.Header().Set("X-Kept", "yes")
	})
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{
		{Name: "a.example.com", Paths: []controlstream.Path{{Append: map[string]string{"X-Set": "ours"}, Splits: []controlstream.Split{{Address: addr, Append: map[string]string{"X-Split": "s"}}}}}},
		{Name: "b.example.com", Paths: []controlstream.Path{{Rewrite: "real.example.com", Append: map[string]string{"K-Original-Host": "b.example.com"}, Splits: splitTo(addr)}}},
	}})
	send := func(r *http.Request) {
		for k, v := range map[string]string{
			"X-Set": "theirs", "Connection": "X-Hop, keep-alive", "X-Hop": "1", "Proxy-Authorization": "p", "TE": "trailers, deflate",
			"K-Network-Probe": "queue", "K-Network-Hash": "h", "K-Proxy-Request": "activator", "K-Kubelet-Probe": "k", "K-Original-Host": "evil",
			"X-Forwarded-For": "1.2.3.4", "X-Forwarded-Proto": "https", "Forwarded": "for=1.2.3.4", "X-Mine": "m", "Authorization": "Bearer theirs",
			"Upgrade": "h2c", "Http2-Settings": "AAMAAABkAARAAAAAAAIAAAAA",
		} {
			r.Header.Set(k, v)
		}
	}
	res, _ := w.get("a.example.com", "/", send)
	for k, want := range map[string]string{
		"X-Set": "ours", "X-Split": "s", "X-Hop": "", "Proxy-Authorization": "", "Te": "trailers", "K-Network-Probe": "", "K-Network-Hash": "",
		"K-Proxy-Request": "", "K-Kubelet-Probe": "", "K-Original-Host": "", "X-Forwarded-For": "1.2.3.4, 127.0.0.1", "X-Forwarded-Proto": "https",
		"X-Forwarded-Host": "a.example.com", "Forwarded": "for=1.2.3.4", "X-Mine": "m", "Authorization": "Bearer theirs", "Upgrade": "", "Connection": "", "Http2-Settings": "",
	} {
		if got := strings.Join(seen[http.CanonicalHeaderKey(k)], "|"); got != want {
			t.Errorf("%s: %q, want %q", k, got, want)
		}
	}
	if host != "a.example.com" || res.Header.Get("X-Secret") != "" || res.Header.Get("Keep-Alive") != "" || res.Header.Get("X-Kept") != "yes" {
		t.Error(host, res.Header)
	}
	w.get("b.example.com", "/")
	if host != "real.example.com" || seen.Get("K-Original-Host") != "b.example.com" || seen.Get("X-Forwarded-Host") != "b.example.com" ||
		seen.Get("X-Forwarded-Proto") != "http" {
		t.Error(host, seen)
	}
	// On the private listener the field is kept: Knative's domain mappings set it.
	w.do(w.private, "a.example.com", "/", withHeader("K-Original-Host", "vanity.example.com"))
	if seen.Get("K-Original-Host") != "vanity.example.com" {
		t.Error(seen)
	}
}

// TestProbe: probes of Knative's networking are answered, and reach no backend.
func TestProbe(t *testing.T) {
	w := newWorld(t, nil)
	w.act.Publish(newModel("rev-1", "mine", true))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{{Name: "a.example.com", Paths: []controlstream.Path{
		{Headers: map[string]string{"K-Network-Hash": "override"}, Append: map[string]string{"K-Network-Hash": "abc"}, Splits: []controlstream.Split{{Function: functionName("rev-1")}}},
		{Splits: []controlstream.Split{{Function: functionName("rev-1")}}},
	}}}})
	for _, c := range []struct {
		hash   string
		status int
		want   string
	}{{"override", 200, "abc"}, {"other", 200, "other"}, {"", 400, ""}} {
		res, _ := w.get("a.example.com", "/", withHeader("K-Network-Probe", "probe"), func(r *http.Request) {
			if c.hash != "" {
				r.Header.Set("K-Network-Hash", c.hash)
			}
		})
		if res.StatusCode != c.status || res.Header.Get("K-Network-Hash") != c.want {
			t.Errorf("%q: %d %v", c.hash, res.StatusCode, res.Header)
		}
	}
	if n := w.woken(); n != 0 {
		t.Errorf("probes woke %d", n)
	}
}

// TestRefused: ambiguous or malformed requests are refused.
func TestRefused(t *testing.T) {
	w := newWorld(t, nil)
	hasty := newWorld(t, func(o *Options, _ *activator.Options) { o.HeadTimeout = 100 * time.Millisecond })
	var asked atomic.Int32
	addr := backend(t, func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %q %v", r.RequestURI, b, r.TransferEncoding)
	})
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("a", controlstream.Split{Address: addr})}})
	if got := rawRequest(t, hasty.public, "GET / HTTP/1.1\r\nHost: a\r\nX"); !strings.HasPrefix(got, "HTTP/1.1 400") {
		t.Errorf("slow head: %.200q", got)
	}
	for _, c := range []struct {
		name, send string
		want       string // prefix of the first response
		asked      int32  // requests that the service got
	}{
		{"two lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "HTTP/1.1 400", 0},
		{"strange coding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 501", 0},
		{"two codings", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", "HTTP/1.1 501", 0},
		{"no host", "GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 400", 0},
		{"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "HTTP/1.1 400", 0},
		{"bad host", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "HTTP/1.1 400", 0},
		{"space before colon", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length : 3\r\n\r\nabc", "HTTP/1.1 400", 0},
		{"NUL in a value", "GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", "HTTP/1.1 400", 0},
		{"whole URL", "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 400", 0},
		{"CONNECT", "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 405", 0},
		{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 400", 0},
		{"large head", "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 8<<10) + "\r\n\r\n", "HTTP/1.1 431", 0},
		{"very large head", "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", "HTTP/1.1 431", 0},
		// With both fields the length is ignored, and not forwarded.
		{"both", "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200", 1},
		// A request within the body of another is not served.
		{"inside", "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\nConnection: close\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n\r\n", "HTTP/1.1 200", 1},
		{"fits", "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: " + strings.Repeat("x", 7<<10) + "\r\n\r\n", "HTTP/1.1 200", 1},
		{"bad chunk", "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "HTTP/1.1 502", -1},
	} {
		asked.Store(0)
		if got := rawRequest(t, w.public, c.send); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %.200q", c.name, got)
		}
		if n := asked.Load(); c.asked >= 0 && n != c.asked {
			t.Errorf("%s: the service was asked %d times", c.name, n)
		}
	}
}

func TestUnreachable(t *testing.T) {
	const gone = "127.0.0.1:1" // no test listens there
	w := newWorld(t, nil)
	breaks := backend(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	w.act.Publish(newModel("rev-1", "mine", true, gone))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{
		hostTable("gone", controlstream.Split{Address: gone}), hostTable("breaks", controlstream.Split{Address: breaks}),
		hostTable("nowhere"), hostTable("unknown", controlstream.Split{Function: functionName("rev-9")}), hostTable("dead", controlstream.Split{Function: functionName("rev-1")}),
	}})
	for _, c := range []struct {
		host   string
		status int
		code   string
	}{
		{"gone", 503, "service_unavailable"}, {"breaks", 502, "engine_crashed"}, {"nowhere", 503, "service_unavailable"},
		{"unknown", 503, "model_loading"}, {"dead", 502, "engine_crashed"},
	} {
		res, body := w.get(c.host, "/x")
		var e struct {
			Error struct{ Code, Message string }
		}
		if res.StatusCode != c.status || json.Unmarshal([]byte(body), &e) != nil || e.Error.Code != c.code ||
			res.Header.Get("x-should-retry") == "" {
			t.Errorf("%s: %d %s %v", c.host, res.StatusCode, body, res.Header)
		}
	}
}

func TestHTTP2AndTrailers(t *testing.T) {
	w := newWorld(t, nil)
	h := func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Trailer", "X-Sum")
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %s", r.Proto, b)
		rw.(http.Flusher).Flush()
		rw.Header().Set("X-Sum", fmt.Sprint(len(b), " ", r.Trailer.Get("X-Client")))
		rw.Header().Set(http.TrailerPrefix+"X-Late", "late")
	}
	one, two := backend(t, h), h2cBackend(t, h)
	w.act.Publish(newModel("rev-1", "mine", true, one), newModel("rev-2", "mine", true))
	f := newModel("rev-2", "mine", true, "x")
	f.Replicas[0].Endpoint = "h2c://" + two
	w.act.Publish(f)
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{
		hostTable("one", controlstream.Split{Address: one}), hostTable("two", controlstream.Split{Address: two, H2C: true}),
		hostTable("rev1", controlstream.Split{Function: functionName("rev-1")}), hostTable("rev2", controlstream.Split{Function: functionName("rev-2")}),
	}})
	clients := map[string]*http.Client{"HTTP/1.1": w.client, "HTTP/2": h2cClient(t)}
	for proto, client := range clients {
		for host, want := range map[string]string{"one": "HTTP/1.1", "two": "HTTP/2.0", "rev1": "HTTP/1.1", "rev2": "HTTP/2.0"} {
			r, _ := http.NewRequest("POST", "http://"+w.public+"/", struct{ io.Reader }{strings.NewReader("hello")}) // no length
			r.Host = host
			r.Trailer = http.Header{"X-Client": {"mine"}}
			res, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || string(b) != want+" hello" || res.Trailer.Get("X-Sum") != "5 mine" || res.Trailer.Get("X-Late") != "late" {
				t.Errorf("%s to %s: %q %v %v", proto, host, b, res.Trailer, err)
			}
		}
	}
}

// TestBothWays: bodies stream in both directions at once, each side waiting for the other.
func TestBothWays(t *testing.T) {
	w := newWorld(t, nil)
	h := func(rw http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(rw)
		c.EnableFullDuplex()
		c.Flush()
		br := bufio.NewReader(r.Body)
		for {
			l, err := br.ReadString('\n')
			if err != nil {
				return
			}
			io.WriteString(rw, "echo "+l)
			c.Flush()
		}
	}
	two := h2cBackend(t, h)
	f := newModel("rev-1", "mine", true, "x")
	f.Replicas[0].Endpoint = "h2c://" + two
	w.act.Publish(f)
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("two", controlstream.Split{Address: two, H2C: true}), hostTable("rev", controlstream.Split{Function: functionName("rev-1")})}})
	for _, host := range []string{"two", "rev"} {
		pr, pw := io.Pipe()
		r, _ := http.NewRequest("POST", "http://"+w.public+"/", pr)
		r.Host = host
		res, err := h2cClient(t).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		br := bufio.NewReader(res.Body)
		for i := range 5 {
			fmt.Fprintf(pw, "%d\n", i)
			if l, err := br.ReadString('\n'); err != nil || l != fmt.Sprintf("echo %d\n", i) {
				t.Fatalf("%q %v", l, err)
			}
		}
		pw.Close()
		if _, err := br.ReadByte(); err != io.EOF {
			t.Error(err)
		}
		res.Body.Close()
	}
}

// block has a prime length, so that pieces of other lengths differ.
var block = func() (b [65521]byte) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}()

// pattern is a reader of bytes that depend on their offset.
type pattern struct{ at, size int }

func (p *pattern) Read(b []byte) (int, error) {
	if p.at == p.size {
		return 0, io.EOF
	}
	i := p.at % len(block)
	n := copy(b, block[i:min(len(block), i+p.size-p.at)])
	p.at += n
	return n, nil
}

// TestLarge: a held request of 10 MiB up and 10 MiB down is streamed, not kept in memory.
func TestLarge(t *testing.T) {
	const size = 10 << 20
	same := func(in io.Reader) error {
		want, got := make([]byte, 32<<10), make([]byte, 32<<10)
		p := &pattern{size: size}
		for {
			n, err := io.ReadFull(p, want)
			if m, _ := io.ReadFull(in, got[:n]); m != n || !bytes.Equal(want[:n], got[:m]) {
				return errors.New("not the same bytes")
			}
			if err != nil {
				if m, err := in.Read(got); m != 0 || err != io.EOF {
					return fmt.Errorf("%d more bytes, %v", m, err)
				}
				return nil
			}
		}
	}
	w := newWorld(t, func(o *Options, _ *activator.Options) { o.MaxBody = 256 << 10 })
	addr := backend(t, func(rw http.ResponseWriter, r *http.Request) {
		if err := same(r.Body); err != nil {
			http.Error(rw, err.Error(), 500)
			return
		}
		io.Copy(rw, &pattern{size: size})
	})
	w.act.Publish(newModel("rev-1", "mine", true))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("a", controlstream.Split{Function: functionName("rev-1")})}})
	for _, sized := range []bool{true, false} {
		w.act.Publish(newModel("rev-1", "mine", true))
		r, _ := http.NewRequest("POST", "http://"+w.public+"/", &pattern{size: size})
		r.Host = "a"
		if sized {
			r.ContentLength = size
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		done := make(chan error, 1)
		go func() {
			res, err := w.client.Do(r)
			if err == nil {
				defer res.Body.Close()
				if res.StatusCode != 200 {
					err = errors.New(res.Status)
				} else {
					err = same(res.Body)
				}
			}
			done <- err
		}()
		w.await(func() bool { d, _ := w.act.DemandOf(functionName("rev-1")); return d.Queued == 1 })
		w.act.Publish(newModel("rev-1", "mine", true, addr))
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		// During the hold at most the bound was read; none of the rest is kept.
		if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 {
			t.Errorf("%d bytes were allocated for 20 MiB on their way", got)
		}
	}
}

// upgradeEcho does a WebSocket handshake by hand; afterwards both sides exchange plain
// bytes.
func upgradeEcho(t *testing.T, addr, host string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: "+
		"13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\r\n", host)
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != 101 || res.Header.Get("Upgrade") != "websocket" {
		t.Fatalf("%d %v", res.StatusCode, res.Header)
	}
	return c, br
}

func echoServer(rw http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Sec-Websocket-Key") == "" {
		http.Error(rw, "no", 400)
		return
	}
	c, b, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	io.Copy(c, b)
}

func TestWebSockets(t *testing.T) {
	w := newWorld(t, nil)
	addr := backend(t, echoServer)
	w.act.Publish(newModel("rev-1", "mine", true))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("svc", controlstream.Split{Address: addr}), hostTable("rev", controlstream.Split{Function: functionName("rev-1")})}})
	for _, host := range []string{"svc", "rev"} {
		if host == "rev" {
			go func() {
				w.await(func() bool { d, _ := w.act.DemandOf(functionName("rev-1")); return d.Queued == 1 })
				w.act.Publish(newModel("rev-1", "mine", true, addr))
			}()
		}
		c, br := upgradeEcho(t, w.public, host)
		for i := range 3 {
			fmt.Fprintf(c, "frame %d\n", i)
			if l, err := br.ReadString('\n'); err != nil || l != fmt.Sprintf("frame %d\n", i) {
				t.Fatalf("%q %v", l, err)
			}
		}
		if d, _ := w.act.DemandOf(functionName("rev-1")); host == "rev" && d.Active != 1 {
			t.Errorf("a WebSocket counts as a request: %+v", d)
		}
		c.Close()
	}
	w.await(func() bool { d, _ := w.act.DemandOf(functionName("rev-1")); return d.Active == 0 })
	// A WebSocket that is open when the drain is over is cut.
	c, br := upgradeEcho(t, w.public, "rev")
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if w.g.Shutdown(ctx) == nil {
		t.Error("something was cut")
	}
	if _, err := br.ReadByte(); err == nil {
		t.Error("it lives on")
	}
}

// TestLeave: a held request whose client disconnects frees its place, over each protocol
// and however much of its body is unread.
func TestLeave(t *testing.T) {
	w := newWorld(t, nil)
	w.act.Publish(newModel("rev-1", "mine", true))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("a", controlstream.Split{Function: functionName("rev-1")})}})
	queued := func(n int) func() bool {
		return func() bool { d, _ := w.act.DemandOf(functionName("rev-1")); return d.Queued == n }
	}
	piece := strings.Repeat("x", 100<<10)
	for what, send := range map[string]string{
		"no body": "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"small":   "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
		"large":   "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1024000\r\n\r\n" + strings.Repeat(piece, 10),
		"slow":    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1024000\r\n\r\n" + piece,
		"endless": "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n19000\r\n" + piece + "\r\n",
		"nothing": "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		c, err := net.Dial("tcp", w.public)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, send); err != nil {
			t.Error(what, err)
		}
		w.await(queued(1))
		c.Close()
		w.await(queued(0))
	}
	ctx, cancel := context.WithCancel(context.Background())
	r, _ := http.NewRequestWithContext(ctx, "POST", "http://"+w.public+"/", &pattern{size: 10 << 20})
	r.Host = "a"
	done := make(chan error, 1)
	go func() {
		_, err := h2cClient(t).Do(r)
		done <- err
	}()
	w.await(queued(1))
	cancel()
	<-done
	w.await(queued(0))
	w.stop()
	if n := w.g.o.Bodies.Used(); n != 0 {
		t.Errorf("%d bytes are still counted as read ahead", n)
	}
}

// TestRetry: a replica that dies before the head of its response is replaced, once, if the
// body can be sent again.
func TestRetry(t *testing.T) {
	w := newWorld(t, nil)
	var died, served atomic.Int32
	var read atomic.Bool
	dies := backend(t, func(_ http.ResponseWriter, r *http.Request) {
		died.Add(1)
		if read.Load() {
			io.CopyN(io.Discard, r.Body, 2*keepBody)
		}
		panic(http.ErrAbortHandler)
	})
	lives := backend(t, func(rw http.ResponseWriter, r *http.Request) {
		served.Add(1)
		sayEcho("alive")(rw, r)
	})
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("a", controlstream.Split{Function: functionName("rev-1")})}})
	tries := func(addrs ...string) {
		f := newModel("rev-1", "mine", true, addrs...)
		w.act.Remove(f.Name)
		w.act.Publish(f)
	}
	tries(dies, lives)
	asks := func() int { w.mu.Lock(); defer w.mu.Unlock(); return len(w.asks) }
	for i, body := range []string{"", "hello", strings.Repeat("x", 20<<10)} {
		died.Store(0)
		for died.Load() == 0 { // until the dying replica is picked first
			tries(dies, lives)
			before := asks()
			res, got := w.get("a", "/", postRequest(body), func(r *http.Request) {
				if i == 2 {
					r.ContentLength = -1 // chunked
				}
			})
			if res.StatusCode != 200 || !strings.HasSuffix(got, " "+body) {
				t.Errorf("%d: %d %s", i, res.StatusCode, got)
			}
			if int32(asks()-before) != died.Load() {
				t.Error("the platform is told of each")
			}
		}
	}
	tries(dies, dies)
	died.Store(0)
	res, body := w.get("a", "/", postRequest("x"))
	if res.StatusCode != 502 || died.Load() != 2 || res.Header.Get("x-should-retry") != "false" {
		t.Errorf("both die: %d %s after %d tries, %v", res.StatusCode, body, died.Load(), res.Header)
	}
	tries(dies, dies)
	died.Store(0)
	read.Store(true)
	r, _ := http.NewRequest("POST", "http://"+w.public+"/", &pattern{size: 1 << 20})
	r.Host, r.ContentLength = "a", 1<<20
	if res, err := w.client.Do(r); err == nil { // the write may fail first
		if res.StatusCode != 502 {
			t.Error(res.Status)
		}
		res.Body.Close()
	}
	if n := died.Load(); n != 1 {
		t.Errorf("a large body was sent %d times", n)
	}
}

// TestStale: a connection that a replica closed while idle is no failure: even a POST is
// sent once more, to that replica, without a health report.
func TestStale(t *testing.T) {
	w := newWorld(t, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	var dialled atomic.Int32
	conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			dialled.Add(1)
			conns.Go(func() { // answers once, and closes at the next request
				defer c.Close()
				br := bufio.NewReader(c)
				if !skipRaw(br) {
					return
				}
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				br.ReadByte()
			})
		}
	})
	w.act.Publish(newModel("rev-1", "mine", true, ln.Addr().String()))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("a", controlstream.Split{Function: functionName("rev-1")})}})
	for i, body := range []string{"x", strings.Repeat("x", 5<<10), "", "y"} {
		if res, got := w.get("a", "/", postRequest(body)); res.StatusCode != 200 || got != "ok" {
			t.Errorf("%d: %d %s", i, res.StatusCode, got)
		}
	}
	if n := dialled.Load(); n != 4 {
		t.Errorf("%d connections", n)
	}
	w.mu.Lock()
	if len(w.asks) != 0 {
		t.Error(w.asks)
	}
	w.mu.Unlock()
	w.stop()
	ln.Close()
	conns.Wait()
}

// TestCut: requests to a replica that the platform gave up move to another one.
func TestCut(t *testing.T) {
	w := newWorld(t, nil)
	inside, leave := make(chan struct{}), make(chan struct{})
	frozen := backend(t, func(http.ResponseWriter, *http.Request) { close(inside); <-leave })
	t.Cleanup(func() { close(leave) })
	w.act.Publish(newModel("rev-1", "mine", true, frozen))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("a", controlstream.Split{Function: functionName("rev-1")})}})
	done := make(chan string, 1)
	go func() { _, body := w.get("a", "/", postRequest("x")); done <- body }()
	<-inside
	w.act.Publish(newModel("rev-1", "mine", true, backend(t, sayEcho("other"))))
	w.g.DataPath().AbortThrough("http://" + frozen)
	if body := <-done; !strings.HasPrefix(body, "other POST") {
		t.Error(body)
	}
}

// TestBroken: a response that breaks off at the backend breaks off for the client.
func TestBroken(t *testing.T) {
	w := newWorld(t, nil)
	addr := backend(t, func(rw http.ResponseWriter, _ *http.Request) {
		io.WriteString(rw, "half")
		rw.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	w.act.Publish(newModel("rev-1", "mine", true, addr))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("svc", controlstream.Split{Address: addr}), hostTable("rev", controlstream.Split{Function: functionName("rev-1")})}})
	for _, client := range []*http.Client{w.client, h2cClient(t)} {
		for _, host := range []string{"svc", "rev"} {
			r, _ := http.NewRequest("GET", "http://"+w.public+"/", nil)
			r.Host = host
			res, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err == nil || string(b) != "half" {
				t.Errorf("%s: %q %v", host, b, err)
			}
		}
	}
	w.await(func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.asks) == 2 })
}

// TestCanary: an 80/20 split by host and by model, with fixed random numbers.
func TestCanary(t *testing.T) {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(3, 4))
	draw := func(n int) int { mu.Lock(); defer mu.Unlock(); return random.IntN(n) }
	w := newWorld(t, func(o *Options, a *activator.Options) { o.Draw, a.Random = draw, draw })
	var got [2]atomic.Int32
	serve := func(i int) string {
		return backend(t, func(rw http.ResponseWriter, r *http.Request) {
			got[i].Add(1)
			b, _ := io.ReadAll(r.Body)
			rw.Header().Set("Content-Type", "application/json")
			rw.Write(b)
		})
	}
	w.act.Publish(newModel("rev-1", "mine", false, serve(0)), newModel("rev-2", "mine", false, serve(1)))
	splits := []controlstream.Split{{Percent: 80, Function: functionName("rev-1")}, {Percent: 20, Function: functionName("rev-2")}}
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{{Name: "mine", Paths: []controlstream.Path{{Splits: splits}}}}, Models: []controlstream.Model{{Name: functionName("mine"), Splits: splits}}})
	for _, host := range []string{"mine", "elsewhere"} {
		got[0].Store(0)
		got[1].Store(0)
		const n = 500
		for range n {
			model := "mine"
			if host == "mine" {
				model = "whatever"
			}
			res, body := w.get(host, "/v1/chat/completions", postRequest(`{"model":"`+model+`","messages":[]}`))
			if res.StatusCode != 200 || body != `{"model":"mine","messages":[]}` { // the name that the engine knows
				t.Fatal(res.StatusCode, body)
			}
		}
		if d := float64(got[1].Load()) - n*.2; d*d > 16*n*.2*.8 || got[0].Load()+got[1].Load() != n {
			t.Errorf("%s: %d and %d", host, got[0].Load(), got[1].Load())
		}
	}
}

// TestSwap: replacing the table under load fails no request.
func TestSwap(t *testing.T) {
	w := newWorld(t, nil)
	a, b := backend(t, sayEcho("a")), backend(t, sayEcho("b"))
	tables := [2]*controlstream.Table{}
	for i, addr := range []string{a, b} {
		tables[i] = &controlstream.Table{Version: uint64(i), Hosts: []controlstream.Host{hostTable("x", controlstream.Split{Address: addr})}, Models: []controlstream.Model{{Name: functionName("m"), Splits: []controlstream.Split{{Function: functionName("rev-1")}}}}}
	}
	w.g.SetTable(tables[0])
	stop := make(chan struct{})
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				w.g.SetTable(tables[i%2])
				runtime.Gosched()
			}
		}
	})
	var over sync.WaitGroup
	for range 4 {
		over.Go(func() {
			for range 100 {
				if res, body := w.get("x", "/"); res.StatusCode != 200 {
					t.Error(res.StatusCode, body)
					return
				}
			}
		})
	}
	over.Wait()
	close(stop)
	swaps.Wait()
	w.g.SetTable(tables[1]) // the newest table applies at once
	if _, body := w.get("x", "/"); !strings.HasPrefix(body, "b ") {
		t.Error(body)
	}
}

// TestDrain: a drain refuses held requests as retryable, and lets requests in flight
// finish.
func TestDrain(t *testing.T) {
	w := newWorld(t, nil)
	begun, goOn := make(chan struct{}), make(chan struct{})
	addr := backend(t, func(rw http.ResponseWriter, _ *http.Request) {
		io.WriteString(rw, "first ")
		rw.(http.Flusher).Flush()
		close(begun)
		<-goOn
		io.WriteString(rw, "last")
	})
	w.act.Publish(newModel("cold", "mine", true), newModel("warm", "warm", true, addr), newModel("ours", "ours", false))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("cold", controlstream.Split{Function: functionName("cold")}), hostTable("warm", controlstream.Split{Function: functionName("warm")}), hostTable("ours", controlstream.Split{Function: functionName("ours")})}})
	type answer struct {
		status int
		body   string
	}
	answers := map[string]chan answer{}
	for _, host := range []string{"cold", "warm", "ours"} {
		c := make(chan answer, 1)
		answers[host] = c
		go func() {
			res, body := w.get(host, "/v1/chat/completions", postRequest(`{"messages":[]}`))
			c <- answer{res.StatusCode, body}
		}()
	}
	<-begun
	w.await(func() bool {
		a, _ := w.act.DemandOf(functionName("cold"))
		b, _ := w.act.DemandOf(functionName("ours"))
		return a.Queued == 1 && b.Queued == 1
	})
	stopped := make(chan struct{})
	go func() { w.stop(); close(stopped) }()
	for _, host := range []string{"cold", "ours"} {
		if a := <-answers[host]; a.status != 503 || !strings.Contains(a.body, "shutting_down") {
			t.Errorf("%s: %+v", host, a)
		}
	}
	close(goOn)
	if a := <-answers["warm"]; a.status != 200 || a.body != "first last" {
		t.Errorf("%+v", a)
	}
	<-stopped
}

// TestLeader: requests for the control API go to the leader, over TLS where the gateway has a
// certificate; those from outside the cluster only where the operator allows that.
func TestLeader(t *testing.T) {
	t.Run("plain", func(t *testing.T) { testLeader(t, nil, backend) })
	made, err := mtls.Issue(time.Now(), "controller", "activator")
	if err != nil {
		t.Fatal(err)
	}
	identity := func(name string) *mtls.Identity {
		id, err := mtls.Read(made.Root, made.Leaves[name])
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	t.Run("TLS", func(t *testing.T) {
		testLeader(t, func() (*tls.Config, error) { return mtls.Client(identity("activator"), "controller"), nil },
			func(t testing.TB, h http.HandlerFunc) string {
				s := httptest.NewUnstartedServer(h)
				s.TLS = mtls.Server(func() (*mtls.Identity, error) { return identity("controller"), nil }, "activator")
				s.StartTLS()
				t.Cleanup(s.Close)
				return s.Listener.Addr().String()
			})
	})
}

func testLeader(t *testing.T, secure func() (*tls.Config, error), serve func(testing.TB, http.HandlerFunc) string) {
	var leader atomic.Pointer[string]
	none := ""
	leader.Store(&none)
	counted := make(chan string, 10)
	w := newWorld(t, func(o *Options, _ *activator.Options) {
		o.Leader, o.LeaderTLS = func() string { return *leader.Load() }, secure
		o.Count = func(labels ...string) { counted <- strings.Join(labels, " ") }
	})
	if res, body := w.do(w.private, "x", "/api/v1/functions"); res.StatusCode != 503 || !strings.Contains(body, "No controller leads") {
		t.Error(res.StatusCode, body)
	}
	if c := <-counted; c != "controller 503" {
		t.Errorf("counted as %q", c)
	}
	addr := serve(t, func(rw http.ResponseWriter, r *http.Request) {
		io.WriteString(rw, r.URL.Path+r.Header.Get("Authorization"))
	})
	leader.Store(&addr)
	if res, body := w.do(w.private, "x", "/api/v1/functions", withHeader("Authorization", "Bearer k")); res.StatusCode != 200 ||
		body != "/api/v1/functionsBearer k" {
		t.Error(res.StatusCode, body)
	}
	if res, body := w.get("x", "/api/v1/functions", withHeader("Authorization", "Bearer k")); res.StatusCode != 404 ||
		!strings.Contains(body, "thaw-local") {
		t.Error("from outside:", res.StatusCode, body)
	}
	for at, want := range map[string]int{w.public: 404, w.private: 200} {
		if res, _ := w.do(at, "x", "/metrics"); res.StatusCode != want {
			t.Error(at, res.StatusCode)
		}
	}
	open := newWorld(t, func(o *Options, _ *activator.Options) {
		o.Leader, o.LeaderTLS, o.PublicAPI = func() string { return addr }, secure, true
	})
	if res, body := open.get("x", "/api/v1/functions", withHeader("Authorization", "Bearer k")); res.StatusCode != 200 ||
		body != "/api/v1/functionsBearer k" {
		t.Error("from outside, where that is allowed:", res.StatusCode, body)
	}
	if res, _ := open.get("x", "/metrics"); res.StatusCode != 404 {
		t.Error("metrics from outside:", res.StatusCode)
	}
}

// TestKeys: our engines need a key on every path; a program of the user's own checks its
// own credentials.
func TestKeys(t *testing.T) {
	w := newWorld(t, func(_ *Options, a *activator.Options) { a.Open = false })
	addr := backend(t, func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, `{"choices":[],"keys":"%s|%s%s"}`, r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"), r.Header.Get("Api-Key"))
	})
	red, _, _ := w.book.Create("red", "", false)
	blue, _, _ := w.book.Create("blue", "", false)
	w.act.Publish(newModel("red/ours", "", false, addr), newModel("red/plain", "", true, addr))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("ours", controlstream.Split{Function: functionName("red/ours")}), hostTable("plain", controlstream.Split{Function: functionName("red/plain")})}})
	for _, c := range []struct {
		host, path, field, key string
		status                 int
		want                   string
	}{
		{"ours", "/infer", "", "", 401, "invalid_api_key"},
		{"ours", "/infer", "Authorization", "Bearer " + blue, 404, "model_not_found"},
		{"ours", "/infer", "Authorization", "Bearer " + red, 200, "|"}, // the key is not forwarded
		{"ours", "/infer", "X-Api-Key", red, 200, "|"},
		{"ours", "/timeline", "", "", 401, "invalid_api_key"},
		{"ours", "/timeline", "Authorization", "Bearer " + blue, 403, "permission_denied"},
		{"ours", "/timeline", "Authorization", "Bearer " + red, 200, "|"},
		{"ours", "/readyz", "X-Api-Key", red, 200, "|"},
		{"ours", "/timeline", "api-key", red, 200, "|"},
		{"ours", "/x", "Authorization", "Bearer " + red, 404, "unknown_endpoint"},
		{"ours", "/infer/", "Authorization", "Bearer " + red, 404, "unknown_endpoint"},
		{"ours", "/%69nfer", "Authorization", "Bearer " + red, 404, "unknown_endpoint"},
		{"ours", "/sleep", "Authorization", "Bearer " + red, 404, "unknown_endpoint"},
		{"ours", "/v1/chat/completions", "", "", 401, "invalid_api_key"},
		{"ours", "/v1/chat/completions", "Authorization", "Bearer " + blue, 404, "model_not_found"},
		{"ours", "/v1/load_lora_adapter", "Authorization", "Bearer " + red, 404, "unknown_endpoint"},
		{"plain", "/v1/chat/completions", "", "", 200, "|"},
		{"plain", "/x", "Authorization", "Bearer " + blue, 200, "Bearer " + blue + "|"},
		{"plain", "/x", "X-Api-Key", "own", 200, "|own"},
		{"plain", "/x", "api-key", "own", 200, "|own"},
	} {
		res, body := w.get(c.host, c.path, postRequest(`{"messages":[]}`), func(r *http.Request) {
			if c.field != "" {
				r.Header.Set(c.field, c.key)
			}
		})
		if res.StatusCode != c.status || !strings.Contains(body, c.want) || c.status == 200 && body != `{"choices":[],"keys":"`+c.want+`"}` {
			t.Errorf("%s%s: %d %s", c.host, c.path, res.StatusCode, body)
		}
	}
}

// TestInfer: /infer of a model's host is a chat or a completion with all bounds of the API,
// and its tokens are charged.
func TestInfer(t *testing.T) {
	w := newWorld(t, nil)
	var ids []string
	addr := backend(t, func(rw http.ResponseWriter, r *http.Request) {
		ids = append(ids, r.Header.Get("X-Request-Id"))
		rw.Header().Set("Content-Type", "application/json")
		io.WriteString(rw, `{"object":"`+r.URL.Path+`","usage":{"prompt_tokens":400,"completion_tokens":200,"total_tokens":600}}`)
	})
	w.act.Publish(newModel("rev-1", "ours", false, addr))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("ours", controlstream.Split{Function: functionName("rev-1")})}})
	for body, param := range map[string]string{
		`{"messages":[],"n":100000}`:                                                   "/n",
		`{"messages":[],"kv_transfer_params":{}}`:                                      "/kv_transfer_params",
		`{"messages":[],"request_id":"evil"}`:                                          "/request_id",
		`{"prompt":"a","cache_salt":"a b"}`:                                            "/cache_salt",
		`{"messages":[{"content":[{"image_url":{"url":"http://169.254.169.254/"}}]}]}`: "/messages",
		`{"messages":[],"guided_json":"{\"type\":\"string\",\"pattern\":\"(?=a)\"}"}`:  "/guided_json",
	} {
		if res, got := w.get("ours", "/infer", postRequest(body)); res.StatusCode != 400 || !strings.Contains(got, `"param":"`+param+`"`) {
			t.Errorf("%s: %d %s", body, res.StatusCode, got)
		}
	}
	if len(ids) != 0 {
		t.Fatalf("the engine got %d requests out of bounds", len(ids))
	}
	w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: functions.DefaultTeam}, Spec: functions.TeamSpec{Limits: functions.Limits{TokensPerMinute: 1000}}}})
	for i, c := range []struct {
		body, path string
		status     int
	}{
		{`{"messages":[]}`, "/v1/chat/completions", 200},
		{`{"prompt":"a"}`, "/v1/completions", 200},
		{`{"prompt":"a"}`, "rate_limit_exceeded", 429},
	} {
		res, got := w.get("ours", "/infer", postRequest(c.body), withHeader("X-Request-Id", "evil-id"))
		if res.StatusCode != c.status || !strings.Contains(got, c.path) {
			t.Errorf("%d: %d %s", i, res.StatusCode, got)
		}
	}
	if len(ids) != 2 || len(ids[0]) != 32 || len(ids[1]) != 32 || ids[0] == ids[1] {
		t.Errorf("the engine got the ids %q", ids)
	}
}

// TestLimits: a team's limits also apply to requests routed by host.
func TestLimits(t *testing.T) {
	w := newWorld(t, nil)
	addr := backend(t, sayEcho("x"))
	w.act.Publish(newModel("red/p", "", true, addr))
	w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "red"}, Spec: functions.TeamSpec{Limits: functions.Limits{RequestsPerMinute: 2}}}})
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("p", controlstream.Split{Function: functionName("red/p")})}})
	for i, want := range []int{200, 200, 429} {
		if res, body := w.get("p", "/"); res.StatusCode != want {
			t.Errorf("%d: %d %s", i, res.StatusCode, body)
		}
	}
}

// An answer that its backend did not complete is not complete for the client either: all
// that came is passed on, then the connection ends by FIN, and on HTTP/2 by a reset.
func TestBrokenAnswerOfAService(t *testing.T) {
	w := newWorld(t, nil)
	addr := backend(t, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(rw, "data: {\"error\":{}}\n\n")
		rw.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{{Name: "mine", Paths: []controlstream.Path{{Splits: []controlstream.Split{{Percent: 100, Address: addr}}}}}}})
	for proto, c := range map[string]*http.Client{"HTTP/1.1": w.client, "HTTP/2": h2cClient(t)} {
		r, _ := http.NewRequest("GET", "http://"+w.public+"/x", nil)
		r.Host = "mine"
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if string(b) != "data: {\"error\":{}}\n\n" || err == nil || proto == "HTTP/1.1" && err != io.ErrUnexpectedEOF {
			t.Errorf("%s: %q %v", proto, b, err)
		}
	}
}

// H4: a wrong key is refused by the head alone, by host and by model; the body is not
// asked for. The refusal is counted as every other.
func TestKeyIsCheckedBeforeTheBody(t *testing.T) {
	var mu sync.Mutex
	counted := map[string]int{}
	w := newWorld(t, func(o *Options, a *activator.Options) {
		a.Open = false
		o.Count = func(labels ...string) {
			mu.Lock()
			defer mu.Unlock()
			counted[strings.Join(labels, " ")]++
		}
	})
	w.book.Create("red", "", false)
	w.act.Publish(newModel("red/ours", "", false, backend(t, sayEcho("x"))))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("ours", controlstream.Split{Function: functionName("red/ours")})}})
	for _, request := range []string{
		"POST /v1/chat/completions HTTP/1.1\r\nHost: ours\r\nExpect: 100-continue\r\nContent-Length: 33000000\r\n",
		"POST /v1/chat/completions HTTP/1.1\r\nHost: other\r\nExpect: 100-continue\r\nContent-Length: 33000000\r\n",
		"POST /v1/chat/completions HTTP/1.1\r\nHost: other\r\nTransfer-Encoding: chunked\r\n",
	} {
		if got := rawRequest(t, w.public, request+"Authorization: Bearer wrong\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 401 ") ||
			!strings.Contains(got, "invalid_api_key") {
			t.Errorf("%q: %q", request, got)
		}
	}
	key, _, _ := w.book.Create("red", "", false)
	for _, path := range []string{"/v1/chat/completions", "/infer"} {
		body := `{"model":"ours","messages":[{"role":"user","content":"` + strings.Repeat("x", 64<<10) + `"}]}`
		if res, got := w.get("ours", path, postRequest(body), withHeader("Authorization", "Bearer "+key)); res.StatusCode != 200 {
			t.Errorf("%s of 64 KiB with the right key: %d %s", path, res.StatusCode, got)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if counted["function 401"] != 1 || counted["model 401"] != 2 {
		t.Errorf("counted: %v", counted)
	}
}
