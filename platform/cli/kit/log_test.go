package kit

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// sink is an [io.Writer] that blocks or fails as a test wants.
type sink struct {
	gate chan struct{} // nil: writes do not block; else each waits until it is closed

	mu   sync.Mutex
	text strings.Builder
	room int // bytes that are left on the disk; -1: no bound
}

func (s *sink) Write(p []byte) (int, error) {
	if s.gate != nil {
		<-s.gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.room >= 0 && s.room < len(p) {
		n := s.room
		s.text.Write(p[:n])
		s.room = 0
		return n, syscall.ENOSPC
	}
	if s.room >= 0 {
		s.room -= len(p)
	}
	return s.text.Write(p)
}

func (s *sink) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room = -1
}

// messages returns the messages of the lines, which are JSON each.
func (s *sink) messages(t *testing.T) (all []string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for line := range strings.Lines(s.text.String()) {
		var x struct {
			Msg   string
			Lines int
			Error string
		}
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			all = append(all, "not JSON")
			continue
		}
		if x.Lines > 0 {
			x.Msg = fmt.Sprintf("dropped %d %s", x.Lines, x.Error)
		}
		all = append(all, x.Msg)
	}
	return all
}

func (l *Log) droppedLines() (n float64) {
	l.Samples(func(_ string, v float64, _ ...string) { n = v })
	return n
}

func openJSON(w io.Writer) *Log { return LogSettings{LogFormat: "json"}.Open(w) }

// TestLog: a line is written at once, lines of requests within 50 ms or when there are
// many, all in order, and the last ones by Close.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &sink{room: -1}
		l := openJSON(out)
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := out.messages(t); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		l.Info("first")
		expect("a line", "first")
		l.Requests.Info("request 1")
		l.Requests.Info("request 2")
		expect("lines of requests", "first")
		time.Sleep(logBatchFor)
		expect("after a moment", "first", "request 1", "request 2")
		l.Requests.Info("request 3")
		l.Info("second")
		expect("a line after one of a request", "first", "request 1", "request 2", "request 3", "second")
		long := strings.Repeat("x", logBatchBytes)
		l.Requests.Info(long)
		expect("many bytes of requests", "first", "request 1", "request 2", "request 3", "second", long)
		l.Requests.Info("last")
		l.Close()
		expect("at the end", "first", "request 1", "request 2", "request 3", "second", long, "last")
		l.Close()
		l.Info("late")
		if n := l.droppedLines(); n != 1 {
			t.Errorf("%v lines are dropped after Close, want 1", n)
		}
	})
}

// TestLogGap: once a line was dropped, those after it are too until the queue is written:
// the number of dropped lines is logged where they are missing.
func TestLogGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &sink{room: -1, gate: make(chan struct{})}
		l := openJSON(out)
		l.Info("in the writer")
		synctest.Wait()
		l.Info("queued")
		l.Info(strings.Repeat("x", logQueueBytes))
		l.Info("short")
		close(out.gate)
		synctest.Wait()
		l.Info("later")
		l.Close()
		if got, want := out.messages(t), []string{"in the writer", "queued", "dropped 2 ", "later"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// TestLogThatIsNotRead: logging never waits for a writer that blocks (F33). The lines
// beyond the queue are dropped and counted, and their number is logged after the queued
// ones; Close waits for a second.
func TestLogThatIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &sink{room: -1, gate: make(chan struct{})}
		l := openJSON(out)
		l.Info("in the writer")
		synctest.Wait()
		const lines = 3 * logQueueBytes / 100 // of at least 100 bytes each
		began := time.Now()
		for range lines {
			l.Requests.Info(strings.Repeat("x", 100))
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("logging waited for %s", took)
		}
		dropped := l.droppedLines()
		if queued := lines - int(dropped); queued < logQueueBytes/200 || queued > logQueueBytes/100 {
			t.Errorf("%d lines are queued of %d bytes, %v dropped", queued, logQueueBytes, dropped)
		}
		close(out.gate)
		synctest.Wait()
		l.Info("again")
		synctest.Wait()
		got := out.messages(t)
		if want := fmt.Sprintf("dropped %v ", dropped); len(got) != lines-int(dropped)+3 || got[len(got)-2] != want ||
			got[len(got)-1] != "again" {
			t.Errorf("%d lines, the last %q, want %q and again", len(got), got[max(0, len(got)-3):], want)
		}
		l.Close()

		out = &sink{room: -1, gate: make(chan struct{})}
		l = openJSON(out)
		l.Info("stuck")
		began = time.Now()
		l.Close()
		if took := time.Since(began); took != logCloseFor {
			t.Errorf("Close took %s, want %s", took, logCloseFor)
		}
		close(out.gate)
	})
}

// TestLogOnFullDisk: lines that cannot be written are dropped and counted (F9). When
// writing works again, their number and the error are logged, on a line of their own.
func TestLogOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &sink{room: 100}
		l := openJSON(out)
		for _, message := range []string{"one", "two", "three"} {
			l.Info(message)
			synctest.Wait()
		}
		if got := out.messages(t); !slices.Equal(got, []string{"one", "not JSON"}) {
			t.Errorf("on a full disk: %q", got)
		}
		if n := l.droppedLines(); n != 2 {
			t.Errorf("%v lines are dropped, want 2", n)
		}
		out.free()
		l.Info("four")
		l.Close()
		want := []string{"one", "not JSON", "dropped 2 no space left on device", "four"}
		if got := out.messages(t); !slices.Equal(got, want) {
			t.Errorf("after there is room: %q, want %q", got, want)
		}
	})
}

// TestLogAllocations: to queue a line of a request allocates nothing once the queue has its
// size. The handler before it is slog's, whose pool drops buffers under the race detector.
func TestLogAllocations(t *testing.T) {
	l := openJSON(io.Discard)
	defer l.Close()
	w, line := together{l}, []byte(`{"time":"2026-11-23T08:00:00Z","level":"INFO","msg":"request","code":200,"model":"tiny"}`+"\n")
	for range 2 * logQueueBytes / len(line) {
		w.Write(line)
	}
	if n := testing.AllocsPerRun(10_000, func() { w.Write(line) }); n > 0 {
		t.Errorf("%v allocations a line", n)
	}
}
