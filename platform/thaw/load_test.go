package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// These tests put many clients on the whole program.

// perRequest bounds the memory of a held request or an idle connection: about 20 KiB, and
// five times as much with the race detector.
const perRequest = 256 << 10

// rss returns the resident memory of the server's process, in bytes.
func (p *platform) rss() int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.proc.Process.Pid))
	var kib int64
	if _, rest, ok := strings.Cut(string(b), "VmRSS:"); ok {
		fmt.Sscan(rest, &kib)
	}
	return kib << 10
}

func linuxOnly(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("memory and open files are read from /proc")
	}
}

// TestManyRequestsAtOnce: two thousand requests for one cold model cause one start, use little memory
// while they wait, and are all answered.
func TestManyRequestsAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("two thousand connections")
	}
	linuxOnly(t)
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur < 8192 {
		t.Skipf("wants 8192 open files, may have %d", files.Cur)
	}
	const herd = 2000
	loads := filepath.Join(t.TempDir(), "loads") // the model is READY once it is gone
	if err := os.WriteFile(loads, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := spawn(t, map[string]string{
		"m.yaml":  fakeModel("m", "--loads "+loads, "scale: {target: 128}\nqueue: {requests: 3000, wait: 5m}"),
		"ok.yaml": tiny(t, "ok", ""),
	})
	if r := p.chat("ok", `"max_tokens":2`); r.status != 200 {
		t.Fatalf("%d %v %s", r.status, r.err, r.body)
	}
	before, fds := p.rss(), p.fds()
	pad := `,"x":"` + strings.Repeat("x", 1000) + `"`
	var wg sync.WaitGroup
	var mu sync.Mutex
	wrong := map[string]int{}
	var first, last time.Time
	for i := range herd {
		wg.Go(func() {
			more := `"max_tokens":1` + pad
			if i%2 == 0 {
				more += `,"stream":true`
			}
			r := p.chat("m", more)
			now := time.Now()
			mu.Lock()
			defer mu.Unlock()
			if r.status != 200 || r.err != nil || r.text() == "" || i%2 == 0 != strings.HasSuffix(r.body, "data: [DONE]\n\n") {
				wrong[fmt.Sprintf("%d %v %.200s", r.status, r.err, r.body)]++
			}
			if first.IsZero() {
				first = now
			}
			last = now
		})
	}
	var held float64
	var most int64
	p.eventually("all requests wait", func() bool {
		held, most = max(held, p.metric("thaw_buffered_requests{")), max(most, p.rss())
		return held == herd
	})
	// Requests for another model are not delayed meanwhile: they are answered while these wait.
	if r := p.chat("ok", `"max_tokens":2`); r.status != 200 {
		t.Errorf("another model beside the herd: %d %v %s", r.status, r.err, r.body)
	}
	if n := p.metric("thaw_buffered_requests{"); n != herd {
		t.Errorf("%v requests wait after the answer for another model, want %d", n, herd)
	}
	if err := os.Remove(loads); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for w, n := range wrong {
		t.Errorf("%d times: %s", n, w)
	}
	starts := 0
	for _, c := range p.items("/api/v1/coldstarts") {
		if c["function"] == "default/m" {
			starts++
		}
	}
	if starts != 1 {
		t.Errorf("%d cold starts, want 1", starts)
	}
	each := (most - before) / max(1, int64(held))
	t.Logf("%.0f held at %d KiB each; first to last answer %s", held, each>>10, last.Sub(first))
	if each > perRequest {
		t.Errorf("a held request costs %d KiB", each>>10)
	}
	p.awaitNoRequests()
	p.eventually("the herd's files closed", func() bool { return p.fds() <= fds+140 }) // connections to the engine are kept for a while
}

// TestSlowReaders: clients that request much and do not read neither delay others nor use
// memory outside the kernel's socket buffers.
func TestSlowReaders(t *testing.T) {
	linuxOnly(t)
	p := spawn(t, map[string]string{
		"flood.yaml": fakeModel("flood", "--mode flood", "scale: {target: 8}"),
		"ok.yaml":    tiny(t, "ok", ""),
	})
	for _, m := range []string{"ok", "flood"} {
		if r := p.chat(m, `"max_tokens":2`); r.status != 200 {
			t.Fatalf("%s: %d %v %s", m, r.status, r.err, r.body)
		}
	}
	others := func() {
		var wg sync.WaitGroup
		for i := range 24 {
			wg.Go(func() {
				r := p.chat([]string{"ok", "flood"}[i%2], `"max_tokens":2`)
				if r.status != 200 || r.err != nil {
					t.Errorf("%d %v %s", r.status, r.err, r.body)
				}
			})
		}
		wg.Wait()
	}
	others()
	before := p.rss()
	var slow []net.Conn
	for range 4 {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.(*net.TCPConn).SetReadBuffer(4 << 10)
		body := chatBody("flood", `"stream":true`)
		fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			len(body), body)
		io.ReadFull(c, make([]byte, 12)) // the answer has begun
		slow = append(slow, c)
	}
	others() // all are answered while the slow readers' answers last
	if n := p.metric("thaw_active_requests{"); n != 4 {
		t.Errorf("%v requests are under way after the others, want those of the 4 slow readers", n)
	}
	grown := p.rss() - before
	t.Logf("beside 4 slow readers memory grew by %d KiB", grown>>10)
	if grown > 64<<20 {
		t.Errorf("slow readers took %d MiB", grown>>20)
	}
	for _, c := range slow {
		c.Close()
	}
	p.awaitNoRequests()
}

// TestIdleConnections: idle connections use little memory and do not delay others.
func TestIdleConnections(t *testing.T) {
	linuxOnly(t)
	const idle = 1000
	p := spawn(t, map[string]string{"ok.yaml": tiny(t, "ok", "")})
	if r := p.chat("ok", `"max_tokens":2`); r.status != 200 {
		t.Fatalf("%d %v %s", r.status, r.err, r.body)
	}
	before, fds, threads := p.rss(), p.fds(), p.threads()
	conns := make([]net.Conn, 0, idle)
	for range idle {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
		io.WriteString(c, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n") // one without a request ends after 10 s
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
			t.Fatalf("%q %v", line, err)
		}
	}
	p.eventually("all connections taken", func() bool { return p.fds() >= fds+idle-8 })
	t.Logf("%d files became %d; an idle connection costs %d KiB", fds, p.fds(), (p.rss()-before)/idle>>10)
	if each := (p.rss() - before) / idle; each > perRequest {
		t.Errorf("an idle connection costs %d KiB", each>>10)
	}
	if n := p.threads(); n > threads+32 {
		t.Errorf("%d threads became %d", threads, n)
	}
	if r := p.chat("ok", `"max_tokens":2`); r.status != 200 {
		t.Errorf("beside idle connections: %d %v %s", r.status, r.err, r.body)
	}
	for _, c := range conns {
		c.Close()
	}
	p.eventually("all connections closed", func() bool { return p.fds() <= fds+8 })
}
