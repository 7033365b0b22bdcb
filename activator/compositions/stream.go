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
	"github.com/thaw-dev/thaw/functions/newest"
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
	changed newest.Signal // set when there is something to read
	space   newest.Signal // set when something was read

	// Set by the run's goroutine before end is set.

	summary Summary
	failure *openai.Error // nil: the answer is whole
	gone    bool          // the client left
}

// serveStream starts the run and returns when its answer begins, or it failed, or after
// Options.Silent.
func (r *run) serveStream(res *httpserver.Response) (Summary, *openai.Error) {
	st := &stream{r: r, done: make(chan struct{}), begun: make(chan struct{}), changed: newest.NewSignal(), space: newest.NewSignal()}
	st.ctx, st.cancel = context.WithCancelCause(r.ctx)
	gap := admission.ParseTimeouts(r.q.HTTP.Header, true).Gap
	st.period = commentPeriod(r.s.o.Comment, gap)
	r.out = st
	go st.run() // ends with its context, which Close and the client's leaving end
	head := r.s.o.Silent
	if gap > 0 {
		head = min(head, max(gap/3, 10*time.Millisecond))
	}
	select {
	case <-st.begun:
	case <-time.After(head):
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
func (s *stream) run() {
	r := s.r
	defer close(s.done)
	result, err := r.compose(s.ctx)
	s.summary = r.end(&result, err)
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
	case s.ctx.Err() != nil && !errors.Is(context.Cause(s.ctx), httpserver.ErrDraining):
		s.gone, end = true, errAborted
	case err != nil:
		s.failure, end = r.failure(err), httpserver.ErrFailureSent
		b = s.failure.Frame()
	default:
		b = s.lastChunks(&result)
	}
	s.finish(b, end)
}

// lastChunks are the end of a good answer.
func (s *stream) lastChunks(result *compose.Result) []byte {
	r := s.r
	usage := r.q.Envelope.IncludeUsage
	b := r.appendChunk(nil, "{}", r.finishReason(), !usage)
	if usage {
		b = r.appendUsageChunk(b, result.Usage)
	}
	return append(b, openai.Done...)
}

// write appends to what is to be read, and waits while that is too much. data is more than
// comments: it begins the answer.
func (s *stream) write(b []byte, data bool) error {
	for {
		s.mu.Lock()
		if len(s.unread) < maxUnread {
			s.unread = append(s.unread, b...)
			s.begin(data)
			s.mu.Unlock()
			s.changed.Set()
			return nil
		}
		s.mu.Unlock()
		select {
		case <-s.space:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
}

// begin notes that the answer begins. mu is held.
func (s *stream) begin(data bool) {
	if data && !s.data {
		s.data = true
		close(s.begun)
	}
}

// finish writes the last bytes.
func (s *stream) finish(b []byte, end error) {
	s.mu.Lock()
	s.unread, s.end = append(s.unread, b...), end
	s.begin(true)
	s.mu.Unlock()
	s.changed.Set()
}

// Read returns what was written, or a comment or a chunk that adds nothing where there was
// nothing for too long.
func (s *stream) Read(p []byte) (int, error) {
	for {
		if n, err, ok := s.take(p); ok {
			return n, err
		}
		now := s.r.s.o.Now()
		switch {
		case !now.Before(s.noop):
			s.noop = now.Add(s.r.s.o.Noop)
			s.put(openai.NoopChat(nil, s.r.name, now))
			continue
		case !now.Before(s.comment):
			s.comment = now.Add(time.Duration(float64(s.period) * (0.8 + 0.2*rand.Float64())))
			s.put(openai.Comment(nil, "", -1, -1, -1))
			continue
		}
		s.wait(min(s.noop.Sub(now), s.comment.Sub(now)))
	}
}

// take takes what was written; not ok: there is nothing.
func (s *stream) take(p []byte) (n int, err error, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unread) == 0 {
		return 0, s.end, s.end != nil
	}
	n = copy(p, s.unread)
	if s.unread = s.unread[n:]; len(s.unread) == 0 {
		s.unread = nil
		if s.end != errAborted {
			err = s.end
		}
	}
	s.comment = s.r.s.o.Now().Add(s.period)
	s.space.Set()
	return n, err, true
}

func (s *stream) put(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread = append(s.unread, b...)
}

// wait waits for something to be written.
func (s *stream) wait(d time.Duration) {
	if s.timer == nil {
		s.timer = time.NewTimer(d)
	} else {
		s.timer.Reset(d)
	}
	select {
	case <-s.changed:
	case <-s.timer.C:
	}
}

// Close ends the run, unless it is over, and waits for its calls. The server calls it once.
func (s *stream) Close() error {
	s.mu.Lock()
	whole := s.end != nil && len(s.unread) == 0
	s.mu.Unlock()
	s.cancel(httpserver.ErrGone)
	<-s.done
	if s.timer != nil {
		s.timer.Stop()
	}
	code, reason := 200, ""
	switch {
	case !whole || s.gone:
		code, reason = 499, "client_left"
	case s.failure != nil:
		code, reason = s.failure.Status, string(s.failure.Code)
	}
	s.r.q.Finished(code, reason, s.summary)
	return nil
}
