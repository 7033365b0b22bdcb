package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// spawnWithStderr runs a server in its own process, whose stderr is a file.
func spawnWithStderr(t *testing.T, stderr *os.File, files map[string]string, args ...string) *platform {
	t.Helper()
	p := prepare(t, files, args...)
	p.proc = exec.Command(os.Args[0], p.args...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.proc.Stdout, p.proc.Stderr = w, stderr
	if err := p.proc.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		if p.proc != nil {
			p.proc.Process.Kill()
			p.proc.Wait()
		}
		p.awaitNoProcess()
	})
	p.await(p.serving(func(stdout io.Writer) { io.Copy(stdout, r); r.Close() }))
	return p
}

// listModels sends n requests that succeed, over a few connections, and fails the test
// where one is not answered.
func (p *platform) listModels(n int) {
	p.t.Helper()
	const clients = 4
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}, Timeout: patience}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	failed := make(chan error, clients)
	for range clients {
		all.Go(func() {
			for i := range n / clients {
				res, err := client.Get(p.url + "/v1/models")
				if err != nil {
					failed <- fmt.Errorf("request %d of a client: %w", i, err)
					return
				}
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode != 200 {
					failed <- fmt.Errorf("request %d of a client: status %d", i, res.StatusCode)
					return
				}
			}
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		p.t.Error(err)
	}
}

// endsWithin sends SIGTERM and waits for the server's process, which must end by itself.
func (p *platform) endsWithin(d time.Duration) {
	p.t.Helper()
	p.proc.Process.Signal(syscall.SIGTERM)
	ended := make(chan error, 1)
	proc := p.proc
	p.proc = nil
	go func() { ended <- proc.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			p.t.Errorf("the server ended with %v", err)
		}
	case <-time.After(d):
		p.t.Errorf("the server does not end within %s", d)
		proc.Process.Kill()
		<-ended
	}
}

// TestLogIsNotRead: a server whose stderr is a pipe that is not read goes on answering
// (F33). It counts the lines that it drops, and logs their number once the pipe is read
// again. It ends although the pipe is full.
func TestLogIsNotRead(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	p := spawnWithStderr(t, w, nil)
	const requests = 12_000 // their lines are more than the pipe and the queue hold
	p.listModels(requests)
	if t.Failed() {
		return
	}
	dropped := value(p.do("GET", "/metrics", "").body, "thaw_log_lines_dropped_total")
	if dropped < 1000 || dropped > requests {
		t.Errorf("%v lines are dropped of %d", dropped, requests)
	}
	told := make(chan string, 1)
	stop := make(chan struct{})
	go func() {
		s := bufio.NewScanner(r)
		for s.Scan() {
			if strings.Contains(s.Text(), "lines of the log were dropped") {
				told <- s.Text()
				<-stop // the pipe fills again
				return
			}
		}
	}()
	defer close(stop)
	select {
	case line := <-told:
		if want := fmt.Sprintf("lines=%v ", dropped); !strings.Contains(line, want) {
			t.Errorf("the line does not say %q: %s", want, line)
		}
	case <-time.After(patience):
		t.Error("the number of dropped lines is not logged")
	}
	p.listModels(requests / 4)
	p.endsWithin(patience)
}

// TestLogIsClosed: a server whose stderr has no reader any more goes on.
func TestLogIsClosed(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	p := spawnWithStderr(t, w, nil)
	r.Close()
	p.listModels(100)
	p.eventually("dropped lines are counted", func() bool {
		return value(p.do("GET", "/metrics", "").body, "thaw_log_lines_dropped_total") >= 100
	})
	p.endsWithin(patience)
}
