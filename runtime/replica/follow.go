package replica

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
	"github.com/thaw-dev/thaw/runtime/tail"
)

const (
	// followEvery is how often the log of a starting engine is read.
	followEvery = 20 * time.Millisecond
	// followLine is the length at which a line is cut.
	followLine = 16 << 10
	// tailBytes of a start's log are searched for the root cause.
	tailBytes = 128 << 10
	// failedStartWait is the time an engine with a failed start has to exit.
	failedStartWait = 500 * time.Millisecond
)

// line of a log, and when it was read.
type line struct {
	text string
	at   time.Time
}

// followLog sends the lines that are written to a log from offset on, until ctx
// ends. Without a log the endpoints of the engine are enough.
func followLog(ctx context.Context, path string, offset int64, out chan<- line) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	f := tail.New(tail.Options{Path: func() string { return path }, File: file, Every: followEvery, Stop: ctx.Done()})
	defer f.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return
	}
	tail.Lines(f, followLine, func(text string) bool {
		select {
		case out <- line{text, time.Now()}:
			return true
		case <-ctx.Done():
			return false
		}
	})
}

// setLogPhases replaces the start's phases by the finished steps of the log, which are
// more precise than the times of endpoints.
func (r *Replica) setLogPhases(done []engine.Done, present functions.Phase) {
	if r.adopt != nil {
		return
	}
	var spans []functions.Span
	for _, d := range done {
		if d.Phase == present {
			break
		}
		part := functions.Part{Name: d.Name, Start: d.From.Sub(r.o.Began).Seconds(), Duration: d.To.Sub(d.From).Seconds()}
		if n := len(spans); n == 0 || spans[n-1].Phase != d.Phase {
			spans = append(spans, functions.Span{Phase: d.Phase, Start: part.Start})
		}
		s := &spans[len(spans)-1]
		s.Duration += part.Duration
		s.Parts = append(s.Parts, part)
	}
	retained := r.phases[:0:0]
	for _, p := range r.phases {
		switch p.Phase {
		case functions.PhaseSpawn, functions.PhaseLoad, functions.PhaseWarmup:
		default:
			retained = append(retained, p)
		}
	}
	r.phases = sortPhases(append(retained, spans...))
}

// logTail is the end of this start's log: longer than the part in the exit, since the
// tracebacks of several processes are long.
func (r *Replica) logTail(x supervisor.Exit) string {
	path := r.LogPath()
	if path == "" {
		return x.Tail
	}
	f, err := os.Open(path)
	if err != nil {
		return x.Tail
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return x.Tail
	}
	from := max(r.logFrom, st.Size()-tailBytes)
	b := make([]byte, max(st.Size()-from, 0))
	n, _ := f.ReadAt(b, from)
	if n < len(x.Tail) {
		return x.Tail
	}
	return string(b[:n])
}
