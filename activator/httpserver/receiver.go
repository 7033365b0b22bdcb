package httpserver

import (
	"io"
	"log/slog"
	"runtime/debug"

	"github.com/thaw-dev/thaw/functions/openai"
)

// Receiver takes the body of one request as it comes, in place of memory.
type Receiver interface {
	// Receive reads the body, whose end is io.EOF. A body that it does not read to the end
	// is read and dropped. An *openai.Error is the answer, and no handler sees the request;
	// another error of its own is answered 500.
	Receive(body io.Reader) error
	// Close is called once after Receive: when the handler has returned, or where no handler
	// sees the request.
	Close()
}

// closeReceived ends what a receiver keeps of the request.
func (r *Request) closeReceived() {
	if r.Received != nil {
		r.Received.Close()
		r.Received = nil
	}
}

// receiverOf is the receiver of a request's body, nil: memory, and the body's bound.
func (o *Options) receiverOf(q *Request) (r Receiver, limit int64) {
	if o.Receive != nil {
		r, limit = o.Receive(q)
	}
	if r == nil {
		limit = o.MaxBody
	}
	return r, limit
}

// receivedBody is a body as its receiver reads it. Its error is told apart from the
// receiver's own.
type receivedBody struct {
	in    io.Reader
	limit int64
	got   int64
	err   error
}

func (b *receivedBody) Read(p []byte) (n int, err error) {
	if b.err != nil {
		return 0, b.err
	}
	n, b.err = b.in.Read(p)
	if b.got += int64(n); b.got > b.limit {
		n, b.err = 0, errTooLarge
	}
	return n, b.err
}

// receiveBody has r read the body of q, and sets q.Received. Like bodyRefusal it returns the
// answer where that failed, or an error where the client is gone.
func receiveBody(r Receiver, q *Request, in io.Reader, limit int64, log *slog.Logger) (refusal *openai.Error, err error) {
	b := &receivedBody{in: in, limit: limit}
	defer func() {
		if p := recover(); p != nil {
			log.Error("the receiver of a body panicked", "panic", p, "stack", string(debug.Stack()))
			refusal, err = openai.New(openai.InternalError, ""), nil
		}
		if refusal != nil || err != nil {
			r.Close()
			return
		}
		q.Received = r
	}()
	err = r.Receive(b)
	if e, ok := err.(*openai.Error); ok && (b.err == nil || b.err == io.EOF) {
		return e, nil
	}
	if err == nil {
		_, err = io.Copy(io.Discard, b)
	}
	switch {
	case b.err != nil && b.err != io.EOF:
		return bodyRefusal(b.err, limit)
	case err != nil:
		log.Error("a body was not received", "error", err)
		return openai.New(openai.InternalError, ""), nil
	}
	return nil, nil
}
