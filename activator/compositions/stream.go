package compositions

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions/compose"
	"github.com/thaw-dev/thaw/functions/openai"
)

// errAborted makes the server cut the connection of a client that has left.
var errAborted = errors.New("the client left")

// maxUnread bounds what was written and not read: a client that reads slowly slows the run.
const maxUnread = 256 << 10

// stream is the body of a streamed answer. A goroutine of its own runs the pattern and
// writes; the server's reads take what was written, and comments while nothing is.
type stream struct {
	r      *run
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the run is over, and all its calls
	begun  chan struct{} // closed when there is data, or the run is over

	period        time.Duration
	comment, noop time.Time // when the next is due
	timer         *time.Timer

	mu      sync.Mutex
	unread  []byte
	end     error         // behind unread; nil: more comes
	data    bool          // begun is closed
	changed chan struct{} // has an element when there is something to read
	space   chan struct{} // has an element when something was read

	// Set by the run's goroutine before end is set.

	summary Summary
	failure *openai.Error // nil: the answer is whole
	gone    bool          // the client left
}

// serveStream starts the run and returns when its answer begins, or it failed, or after
// Options.Silent.
func (r *run) serveStream(res *httpserver.Response) (Summary, *openai.Error) {
	st := &stream{r: r, done: make(chan struct{}), begun: make(chan struct{}), changed: make(chan struct{}, 1), space: make(chan struct{}, 1)}
	st.ctx, st.cancel = context.WithCancelCause(r.ctx)
	gap := admission.ParseTimeouts(r.q.HTTP.Header, true).Gap
	st.period = commentPeriod(r.s.o.Comment, gap)
	r.out = st
	go st.run() // ends with its context, which Close and the client's leaving end
	head := r.s.o.Silent
	if gap > 0 {
		head = min(head, max(gap/3, 10*time.Millisecond))
	}
	late := time.NewTimer(head)
	defer late.Stop()
	select {
	case <-st.begun:
	case <-late.C:
	}
	st.mu.Lock()
	failed := st.end != nil && (st.failure != nil || st.gone)
	st.mu.Unlock()
	if failed {
		st.cancel(httpserver.ErrGone)
		<-st.done
		if st.gone {
			res.Status = httpserver.StatusClientLeft
			return st.summary, nil
		}
		return st.summary, st.failure
	}
	res.Set("content-type", "text/event-stream")
	res.Set("cache-control", "no-cache, no-transform")
	res.Set("x-accel-buffering", "no")
	now := r.s.o.Now()
	st.comment, st.noop = now, now.Add(r.s.o.Noop)
	res.Stream = st
	return Summary{}, nil
}

// run runs the pattern and writes the end of the answer.
func (st *stream) run() {
	r := st.r
	defer close(st.done)
	result, err := r.compose(st.ctx)
	st.summary = r.end(&result, err)
	if err == nil {
		if !result.Streamed { // the members agree
			err = r.writeContent(result.Text)
		} else if !r.content { // the synthesis is empty
			err = r.writeContent("")
		}
	}
	var b []byte
	end := io.EOF
	switch {
	case st.ctx.Err() != nil && !errors.Is(context.Cause(st.ctx), httpserver.ErrDraining):
		st.gone, end = true, errAborted
	case err != nil:
		st.failure, end = r.failure(err), httpserver.ErrLast
		b = st.failure.Frame()
	default:
		b = st.lastChunks(&result)
	}
	st.finish(b, end)
}

// lastChunks are the end of a good answer.
func (st *stream) lastChunks(result *compose.Result) []byte {
	r := st.r
	usage := r.q.Envelope.IncludeUsage
	b := r.appendChunk(nil, "{}", r.finishReason(), !usage)
	if usage {
		b = r.appendUsageChunk(b, result.Usage)
	}
	return append(b, openai.Done...)
}

// write appends to what is to be read, and waits while that is too much. data is more than
// comments: it begins the answer.
func (st *stream) write(b []byte, data bool) error {
	for {
		st.mu.Lock()
		if len(st.unread) < maxUnread {
			st.unread = append(st.unread, b...)
			st.begin(data)
			st.mu.Unlock()
			signal(st.changed)
			return nil
		}
		st.mu.Unlock()
		select {
		case <-st.space:
		case <-st.ctx.Done():
			return context.Cause(st.ctx)
		}
	}
}

// begin notes that the answer begins. mu is held.
func (st *stream) begin(data bool) {
	if data && !st.data {
		st.data = true
		close(st.begun)
	}
}

// finish writes the last bytes.
func (st *stream) finish(b []byte, end error) {
	st.mu.Lock()
	st.unread, st.end = append(st.unread, b...), end
	st.begin(true)
	st.mu.Unlock()
	signal(st.changed)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Read returns what was written, or a comment or a chunk that adds nothing where there was
// nothing for too long.
func (st *stream) Read(p []byte) (int, error) {
	for {
		if n, err, ok := st.take(p); ok {
			return n, err
		}
		now := st.r.s.o.Now()
		switch {
		case !now.Before(st.noop):
			st.noop = now.Add(st.r.s.o.Noop)
			st.put(openai.NoopChat(nil, st.r.name, now))
			continue
		case !now.Before(st.comment):
			st.comment = now.Add(time.Duration(float64(st.period) * (0.8 + 0.2*rand.Float64())))
			st.put(openai.Comment(nil, "", -1, -1, -1))
			continue
		}
		st.wait(min(st.noop.Sub(now), st.comment.Sub(now)))
	}
}

// take takes what was written; not ok: there is nothing.
func (st *stream) take(p []byte) (n int, err error, ok bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.unread) == 0 {
		return 0, st.end, st.end != nil
	}
	n = copy(p, st.unread)
	if st.unread = st.unread[n:]; len(st.unread) == 0 {
		st.unread = nil
		if st.end != errAborted {
			err = st.end
		}
	}
	st.comment = st.r.s.o.Now().Add(st.period)
	signal(st.space)
	return n, err, true
}

func (st *stream) put(b []byte) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.unread = append(st.unread, b...)
}

// wait waits for something to be written.
func (st *stream) wait(d time.Duration) {
	if st.timer == nil {
		st.timer = time.NewTimer(d)
	} else {
		st.timer.Reset(d)
	}
	select {
	case <-st.changed:
	case <-st.timer.C:
	}
}

// Close ends the run, unless it is over, and waits for its calls. The server calls it once.
func (st *stream) Close() error {
	st.mu.Lock()
	whole := st.end != nil && len(st.unread) == 0
	st.mu.Unlock()
	st.cancel(httpserver.ErrGone)
	<-st.done
	if st.timer != nil {
		st.timer.Stop()
	}
	code, reason := 200, ""
	switch {
	case !whole || st.gone:
		code, reason = 499, "client_left"
	case st.failure != nil:
		code, reason = st.failure.Status, string(st.failure.Code)
	}
	st.r.q.Finished(code, reason, st.summary)
	return nil
}
