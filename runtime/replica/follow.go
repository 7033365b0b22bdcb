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
	// followEvery is how often the log of a starting engine is looked at.
	followEvery = 20 * time.Millisecond
	// followLine bounds one line of it; what is longer is cut.
	followLine = 16 << 10
	// tailBytes of a start's log are looked through for its root cause.
	tailBytes = 128 << 10
	// failedStartWait is for an engine that said it fails to end by itself.
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

// setLogPhases makes phases of the steps of a start, finished ones of them: what the
// log tells is finer and truer than when a port is opened.
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
	kept := r.phases[:0:0]
	for _, p := range r.phases {
		switch p.Phase {
		case functions.PhaseSpawn, functions.PhaseLoad, functions.PhaseWarmup:
		default:
			kept = append(kept, p)
		}
	}
	r.phases = sortPhases(append(kept, spans...))
}

// logTail is the end of what this start wrote: more than came with the exit, for
// a traceback of several processes is long.
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
