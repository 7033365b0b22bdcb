package httpserver

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
)

// What a request's context ends with: both its Err and its [context.Cause].
// errors.Is finds context.Canceled in them.
var (
	ErrGone     error = contextError("httpserver: the client left")
	ErrDraining error = contextError("httpserver: the server is shutting down")
	errAnswered error = contextError("httpserver: the request was answered")
)

type contextError string

func (e contextError) Error() string        { return string(e) }
func (e contextError) Is(target error) bool { return target == context.Canceled }

// Field is one header field.
type Field struct{ Name, Value string }

// Request is one request, its body read whole. It is valid until the handler
// returns or, if the answer has a Stream, until the Stream is closed. The
// strings may be kept longer, Body may not.
type Request struct {
	Method string
	Path   string // as it came, not decoded, without the query
	Query  string // without the question mark
	Host   string
	Body   []byte
	// Received took the body where [Options].Receive had one for it; Body is nil then.
	Received Receiver
	// Opened is what [Options].Authorize has set for the Handler; nil where it was not asked.
	Opened any
	HTTP10 bool // the client speaks HTTP/1.0
	// AsksWebSocket: the client asks to go on as a WebSocket, which only requests for a path
	// of [Options].Upgrades may.
	AsksWebSocket bool

	from exchange
}

// exchange is where a request came from: a connection behind the front, a request of a
// NetHTTPHandler, or this program.
type exchange interface {
	header(name string) string
	eachField(yield func(Field) bool)
	context() *Context
	isDraining() bool
}

// Header returns the first value of the named field as it came, in whatever
// case; "" if there is none. Of a field of our own (thaw-…) it returns all values, with
// commas between them: they restrict a request, and none may hide another.
func (r *Request) Header(name string) string { return r.from.header(name) }

// isThawField reports whether a field's name, in small letters, is one of ours.
func isThawField(name string) bool { return strings.HasPrefix(name, "thaw-") }

// Fields yields the head's fields in their order and spelling.
func (r *Request) Fields(yield func(Field) bool) { r.from.eachField(yield) }

// Context ends with [ErrGone] when the client left, with [ErrDraining] when the
// drain deadline passed, and after the request has been answered. The first
// call arms the watch for departure; a handler that never calls it pays nothing.
func (r *Request) Context() *Context { return r.from.context() }

// Draining reports whether the server has begun to shut down, so that a request
// that would wait can be refused.
func (r *Request) Draining() bool { return r.from.isDraining() }

// StatusClientLeft in a Response without a Stream ends the connection without an answer.
const StatusClientLeft = 499

// Response is what a handler leaves: zero means an empty 200.
type Response struct {
	Status int // 0 is 200
	// Fields of the answer. Those that frame it (Connection, Content-Length,
	// Transfer-Encoding, Date) are ignored: the server writes them.
	Fields []Field
	// Body is the whole answer where Stream is nil.
	Body []byte
	// Stream is the answer's body: each Read is one chunk, flushed; the head goes
	// out with the first. io.EOF ends it cleanly, best together with the last
	// bytes: then both go out in one write. Any other error aborts the connection, so
	// that the client cannot take the part for the whole; with ErrFailureSent all bytes
	// before it arrive. Close is called exactly once, whatever happens, and no
	// Read after it. Read may be called by another goroutine than the handler's,
	// never by two at a time. It may have Buffered() int, how many bytes the next Reads return
	// at once: these go out with the bytes before them.
	Stream io.ReadCloser
	// Length of Stream where it is known; -1 (or 0 with a Stream) is chunked.
	Length int64
	// Close ends the connection after the answer.
	Close bool
	// Upgrade, where the request asks for a WebSocket, takes the connection over in place
	// of an answer: it writes the answer's head itself. The connection ends with it.
	Upgrade func(*Upgraded)
}

// Set appends a field.
func (r *Response) Set(name, value string) { r.Fields = append(r.Fields, Field{name, value}) }

// FieldOf is the value of the first field of a name, whatever its case; "" where there is none.
func FieldOf(fields []Field, name string) string {
	for _, f := range fields {
		if strings.EqualFold(f.Name, name) {
			return f.Value
		}
	}
	return ""
}

// Refuse makes it the answer of an error.
func (r *Response) Refuse(e *openai.Error) {
	r.Status, r.Body = e.Status, e.Body()
	e.Header(func(name, value string) bool { r.Set(name, value); return true })
}

// Handler answers one request. It is called concurrently, once per request, and
// may block; Response comes empty. A panic is answered 500 and the connection
// closed.
type Handler func(*Request, *Response)

// Options of a server. Zero values take the defaults named.
type Options struct {
	Handler Handler
	// Authorize, if set, decides by the head whether a body that did not come with it is
	// read: Request has no Body yet. It returns the account that the body's memory counts
	// for, "" for the client's address. Where it returns false, Response is the refusal;
	// the Handler is not called, the body is not read, and the connection ends.
	Authorize func(*Request, *Response) (account string, ok bool)
	// Receive, if set, returns what takes the body of a request in place of memory, and the
	// bound of that body in place of MaxBody; nil for all others. Authorize is asked first,
	// also about a body that came with its head.
	Receive func(*Request) (r Receiver, limit int64)
	// Refused, if set, sees the answers to requests whose head is whole and that the Handler
	// does not see, and may add fields.
	Refused Handler
	// Upgrades, if set, reports whether requests for a path may ask for a WebSocket. All
	// others that do are refused.
	Upgrades func(path string) bool
	// MaxBody bounds a body in bytes; 32 MiB.
	MaxBody int64
	// Bodies bounds the memory of bodies while they come and while they are answered;
	// 256 MiB, half of it for one account. A request whose body does not fit is refused
	// (503 queue_full, or 429 where its account has its share); one of a few KiB lies in
	// its connection's own buffer and always fits.
	Bodies *Budget
	// Connections bounds the connections of clients; nil: they are unbounded.
	Connections *Connections
	// MaxHead bounds a head in bytes; 8 KiB.
	MaxHead int
	// IdleTimeout ends a connection without a request; 200 s and never less
	// than 180: clients pool sockets up to 120 s, and a close that races a
	// request costs them a retry.
	IdleTimeout time.Duration
	// HeadTimeout bounds a head from its first byte to its last, and the time until the
	// first byte of a new connection; 10 s.
	HeadTimeout time.Duration
	// BodyGrace and BodyRate bound a slow body: after the grace (5 s) it must
	// have come at the rate (1 KiB/s) on average.
	BodyGrace time.Duration
	BodyRate  int64
	// WriteTimeout bounds each write of up to 64 KiB; 30 s.
	WriteTimeout time.Duration
	// WatchAfter is how long a request is unanswered before departure is watched; 50 ms.
	WatchAfter time.Duration
	// CutGrace is what streams get after the drain deadline to write their
	// error frame before connections are closed; 500 ms.
	CutGrace time.Duration
	// Logger gets panics of handlers and errors of listeners; nil is silence.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.MaxBody = cmp.Or(o.MaxBody, 32<<20)
	o.Bodies = cmp.Or(o.Bodies, NewBudget(256<<20, 128<<20))
	o.Connections = cmp.Or(o.Connections, unboundedConnections())
	o.MaxHead = cmp.Or(o.MaxHead, 8<<10)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 200*time.Second)
	o.HeadTimeout = cmp.Or(o.HeadTimeout, 10*time.Second)
	o.BodyGrace = cmp.Or(o.BodyGrace, 5*time.Second)
	o.BodyRate = cmp.Or(o.BodyRate, 1<<10)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
	o.WatchAfter = cmp.Or(o.WatchAfter, 50*time.Millisecond)
	o.CutGrace = cmp.Or(o.CutGrace, 500*time.Millisecond)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return o
}

// Server serves one handler on any number of listeners.
type Server interface {
	// Serve accepts until Shutdown or until the listener fails, and owns the
	// listener. It returns nil after Shutdown.
	Serve(net.Listener) error
	// Shutdown drains: no new connections; idle ones are closed; requests in
	// flight go on, and those that still come find Draining true, until all
	// have ended or ctx has. Then contexts end with ErrDraining, and CutGrace
	// later all connections are closed. It returns nil if nothing was cut,
	// else ctx's error. It is called once.
	Shutdown(ctx context.Context) error
}
