package kit

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions/newest"
)

type LogSettings struct {
	LogLevel  string `json:"log-level" default:"info" help:"what to log" oneof:"debug,info,warn,error"`
	LogFormat string `json:"log-format" default:"text" help:"how to log" oneof:"text,json"`
}

// Logger writes to w; unset fields mean info and text.
func (s LogSettings) Logger(w io.Writer) *slog.Logger {
	o := new(slog.HandlerOptions)
	var level slog.Level
	if level.UnmarshalText([]byte(s.LogLevel)) == nil {
		o.Level = level
	}
	if s.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

const (
	logQueueBytes = 1 << 20               // lines that wait to be written
	logBatchBytes = 64 << 10              // lines of requests that are written at once
	logBatchFor   = 50 * time.Millisecond // how long a line of a request waits for others
	logCloseFor   = time.Second           // how long Close waits for the last lines
)

// Log is the log of a program that serves: a bounded queue of lines with one writer.
// Logging never waits for the writer, so a pipe without a reader, a stopped terminal or a
// full disk stops no request. Lines that find the queue full and lines that cannot be
// written are dropped and counted; a line with their number follows once writing works.
type Log struct {
	// Logger writes its lines at once.
	*slog.Logger
	// Requests has one line per request, written some together: a write per request is a
	// tenth of the request's cost.
	Requests *slog.Logger

	w       io.Writer
	dropped atomic.Uint64 // lines, since Open
	now     newest.Signal // set when lines are to be written at once
	later   newest.Signal // set when lines of requests wait
	closing chan struct{}
	close   func()
	ended   chan struct{} // closed by the writer at its end

	mu     sync.Mutex
	lines  []byte
	full   int // lines that were dropped since lines was last taken, because it was full
	closed bool

	// Owned by the writer.
	spare     []byte
	notes     bytes.Buffer
	note      *slog.Logger // writes to notes
	unwritten int          // dropped lines that were not reported yet
	err       error        // why
	cut       bool         // the last line that was written lacks its end
}

// Open returns the log of a program that writes to w; Close ends it.
func (s LogSettings) Open(w io.Writer) *Log {
	l := &Log{w: w, now: newest.NewSignal(), later: newest.NewSignal(), closing: make(chan struct{}), ended: make(chan struct{})}
	l.Logger, l.Requests = s.Logger(atOnce{l}), s.Logger(together{l})
	l.note = LogSettings{LogFormat: s.LogFormat}.Logger(&l.notes)
	broken := make(chan os.Signal, 1)
	if w == io.Writer(os.Stderr) {
		signal.Notify(broken, syscall.SIGPIPE) // without a receiver, Go ends a program whose stderr has no reader any more
	}
	l.close = sync.OnceFunc(func() {
		close(l.closing)
		select {
		case <-l.ended:
			signal.Stop(broken)
		case <-time.After(logCloseFor):
		}
	})
	go l.write()
	return l
}

// Close writes what is queued, for at most a second. Later lines are dropped.
func (l *Log) Close() { l.close() }

// Samples yields the number of dropped lines.
func (l *Log) Samples(yield func(metric string, value float64, labels ...string)) {
	yield("thaw_log_lines_dropped_total", float64(l.dropped.Load()))
}

// atOnce is the [io.Writer] of lines that are written at once.
type atOnce struct{ l *Log }

func (o atOnce) Write(line []byte) (int, error) {
	o.l.add(line)
	o.l.now.Set()
	return len(line), nil
}

// together is the [io.Writer] of lines that wait for others.
type together struct{ l *Log }

func (t together) Write(line []byte) (int, error) {
	switch n := t.l.add(line); {
	case n >= logBatchBytes:
		t.l.now.Set()
	case n == len(line):
		t.l.later.Set()
	}
	return len(line), nil
}

// add queues one line and returns the number of bytes that are queued.
func (l *Log) add(line []byte) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.full > 0 || len(l.lines)+len(line) > logQueueBytes {
		l.full++
		l.dropped.Add(1)
	} else {
		l.lines = append(l.lines, line...)
	}
	return len(l.lines)
}

func (l *Log) write() {
	defer close(l.ended)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for open := true; open; {
		select {
		case <-l.closing:
			open = false
		case <-l.now:
		case <-l.later:
			pause.Reset(logBatchFor)
			select {
			case <-l.closing:
				open = false
			case <-l.now:
			case <-pause.C:
			}
		}
		l.drain(!open)
	}
}

func (l *Log) drain(last bool) {
	l.mu.Lock()
	lines, full := l.lines, l.full
	l.lines, l.full, l.closed = l.spare[:0], 0, last
	l.mu.Unlock()
	l.spare = lines
	if len(lines) == 0 && full == 0 {
		return
	}
	if l.unwritten > 0 && l.report(l.unwritten, "the log could not be written", l.err) {
		l.unwritten = 0
	}
	if n, err := l.writeAll(lines); err != nil {
		left := bytes.Count(lines[n:], []byte("\n"))
		l.dropped.Add(uint64(left))
		l.unwritten += left
	}
	if full > 0 && !l.report(full, "the log was written too slowly", nil) {
		l.unwritten += full
	}
}

// report writes that lines were dropped, and reports whether that was possible.
func (l *Log) report(n int, why string, err error) bool {
	l.notes.Reset()
	if l.cut {
		l.notes.WriteByte('\n')
	}
	attrs := []slog.Attr{slog.Int("lines", n), slog.String("why", why)}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	l.note.LogAttrs(context.Background(), slog.LevelWarn, "lines of the log were dropped", attrs...)
	_, err = l.writeAll(l.notes.Bytes())
	return err == nil
}

// writeAll writes b and remembers the error.
func (l *Log) writeAll(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, err := l.w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if n > 0 {
		l.cut = b[n-1] != '\n'
	}
	if err != nil {
		l.err = err
	}
	return n, err
}
