package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// peakRSS is the most resident memory that the server's process has had since it started.
func (p *platform) peakRSS() (bytes int64) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.proc.Process.Pid))
	if _, rest, ok := strings.Cut(string(b), "VmHWM:"); ok {
		fmt.Sscan(rest, &bytes)
	}
	return bytes << 10
}

// H4: 1,000 connections with a wrong key and 32 MiB bodies leave the resident memory
// within 64 MiB of idle, and a client with a right key is served meanwhile.
func TestWrongKeysUseNoMemory(t *testing.T) {
	linuxOnly(t)
	trueMemory(t)
	const attackers, allowed = 1000, 64 << 20
	// What is in use is meant, not how much garbage may lie beside it.
	p := spawnAfter(t, "export GOGC=20", map[string]string{"ok.yaml": tiny(t, "ok", "")})
	bearer, _ := p.key("default", false)
	honest := func() reply {
		return p.chat("ok", `"max_tokens":1,"x":"`+strings.Repeat("x", 2<<20)+`"`, "Authorization", bearer)
	}
	if r := honest(); r.status != 200 {
		t.Fatalf("%d %v %.200s", r.status, r.err, r.body)
	}
	idle, peakBefore := p.rss(), p.peakRSS()
	piece := bytes.Repeat([]byte("x"), 64<<10)
	var refused, open atomic.Int64
	var wg sync.WaitGroup
	for range attackers {
		wg.Go(func() {
			c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\nContent-Length: %d\r\n\r\n",
				32<<20)
			open.Add(1)
			wg.Go(func() {
				for range 32<<20/len(piece) - 1 { // all but the end of the body
					if _, err := c.Write(piece); err != nil {
						return
					}
				}
			})
			if r, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && r.StatusCode == 401 {
				refused.Add(1)
			}
			c.Read(make([]byte, 1)) // until the server ends the connection
		})
	}
	over := make(chan struct{})
	go func() { wg.Wait(); close(over) }()
	served, most := 0, int64(0)
	for done := false; !done; {
		select {
		case <-over:
			done = true
		default:
		}
		if r := honest(); r.status != 200 {
			t.Errorf("the honest client, beside %d connections: %d %v %.200s", open.Load(), r.status, r.err, r.body)
			break
		}
		served++
		most = max(most, p.rss())
	}
	<-over
	if refused.Load() != attackers {
		t.Errorf("%d of %d wrong keys were answered 401", refused.Load(), attackers)
	}
	most = max(most, p.peakRSS())
	t.Logf("idle %d MiB, at most %d MiB (%d MiB before); %d honest requests served meanwhile", idle>>20, most>>20, peakBefore>>20, served)
	if most > idle+allowed {
		t.Errorf("resident memory rose from %d MiB to %d MiB, %d MiB more are allowed", idle>>20, most>>20, allowed>>20)
	}
}

// trueMemory skips a test of memory if the race detector's is added to it; the tests with
// real components run without it.
func trueMemory(t *testing.T) {
	t.Helper()
	if raceDetector {
		testkit.Missing(t, "a program without the race detector")
	}
}

// F35: under a small memory limit, load beyond it is refused and does not end the server.
func TestSmallMemory(t *testing.T) {
	linuxOnly(t)
	trueMemory(t)
	t.Run("GOMEMLIMIT", func(t *testing.T) { loadBeyondMemory(t, "export GOMEMLIMIT=96MiB", 96<<20) })
	t.Run("cgroup", func(t *testing.T) {
		// Engines are in the group too: 128 MiB of it are the server's.
		loadBeyondMemory(t, enterCgroup(t, 448<<20), 128<<20)
	})
}

// enterCgroup makes a control group with a memory limit, and returns the command that
// enters it.
func enterCgroup(t *testing.T, limit int) string {
	t.Helper()
	for _, group := range []struct{ root, limit string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, // version 1
		{"/sys/fs/cgroup", "memory.max"},
	} {
		dir := filepath.Join(group.root, fmt.Sprintf("thaw-test-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			testkit.Eventually(t, "the kernel has ended the group's last process", func() bool { return os.Remove(dir) == nil })
		})
		if os.WriteFile(filepath.Join(dir, group.limit), fmt.Append(nil, limit), 0o644) == nil {
			return "echo $$ > " + filepath.Join(dir, "cgroup.procs")
		}
	}
	testkit.Missing(t, "a control group for memory that this user may make")
	return ""
}

func loadBeyondMemory(t *testing.T, before string, limit int64) {
	const clients, size = 96, 4 << 20
	loads := filepath.Join(t.TempDir(), "loads") // the model is READY once it is gone
	if err := os.WriteFile(loads, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := spawnAfter(t, before, map[string]string{
		"slow.yaml": fakeModel("slow", "--loads "+loads, "queue: {requests: 1000, bytes: 4Gi, wait: 5m}"),
	})
	pid := p.proc.Process.Pid
	pad := `"max_tokens":1,"x":"` + strings.Repeat("x", size) + `"`
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[int]int{}
	for range clients {
		wg.Go(func() {
			r := p.chat("slow", pad)
			mu.Lock()
			defer mu.Unlock()
			got[r.status]++
		})
	}
	defer wg.Wait()
	testkit.Eventually(t, "each client is told, or waits", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		told, held := 0, int(p.metric("thaw_buffered_requests{"))
		for _, n := range got {
			told += n
		}
		return told+held == clients && told > 0, fmt.Sprint(got, ", ", held, " wait")
	})
	os.Remove(loads)
	wg.Wait()
	t.Logf("answers by status: %v; at most %d MiB resident", got, p.peakRSS()>>20)
	if got[200] == 0 || got[200]+got[503]+got[429] != clients || got[200] == clients {
		t.Errorf("%d clients were answered %v, want some 200 and the rest 503 or 429", clients, got)
	}
	if r := p.chat("slow", `"max_tokens":1`); r.status != 200 || p.proc.Process.Pid != pid {
		t.Errorf("after the load: %d %v %.200s", r.status, r.err, r.body)
	}
	// Stacks, code and what the collector had not returned yet are beside the limit.
	if peak := p.peakRSS(); peak > limit+64<<20 {
		t.Errorf("%d MiB were resident under a limit of %d MiB", peak>>20, limit>>20)
	}
}
