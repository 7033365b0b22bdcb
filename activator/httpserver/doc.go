// Package httpserver is HTTP in: the only room that knows fiber and fasthttp. It
// hands each request to one [Handler] as plain values and writes back what the
// handler left in its [Response]. Who asks, what they may do and where the
// answer comes from is decided elsewhere.
//
// # Two bodies, one front
//
// [NewFiberServer] serves; [NewNetHTTPServer] is its twin on net/http for tests in
// testing/synctest bubbles and for other systems. Both stand behind the same
// front, a net.Conn of our own ([wire]) that reads one request at a time,
// checks it, and only then lets the server see that there is one. What the
// server sees is a request line of ours without fields or body: GET or HEAD, the
// path "/". So there is one reader of heads and not two that may differ, and
// neither fasthttp's laxness (two Content-Lengths that differ, "xchunked", NUL in
// values, trailers merged into the head) nor its router's opinion of a path is
// ever asked. What the front does for both:
//
//   - The head is checked in one pass before anything else; what is not strict
//     is answered 400 in OpenAI's shape and the connection closed. The corpus of
//     such heads is in the tests.
//   - A declared length is not allocated at once: the buffer grows with what
//     has come. Too large is 413, compressed is 415, too slow is 408. All bodies
//     together have a bound (503): a body is read before anybody knows whose it
//     is, so without one whoever holds no key could fill the memory.
//   - The next request of a pipeline stays in the front until the answer
//     before it is written out, so no answer waits for another.
//   - Connections are tracked; idle ones end when a drain begins, and all when
//     its deadline has passed.
//   - Every write has a deadline: a reader that stops is ended.
//
// [NewNetHTTPHandler] is a third body without the front: a handler inside a net/http server
// that somebody else runs, for requests that come beside others over HTTP/2 or on
// connections that also carry WebSockets. Heads are net/http's to read there, and
// departure is its context's to tell; bodies have the same bounds.
//
// # Departure
//
// A client that leaves (closes, resets, or shuts down its sending side) is
// noticed while its request waits or streams: [Request.Context] is cancelled
// with [ErrGone]. On Linux one epoll set per server does it, itself parked on
// Go's netpoller, armed only for requests unanswered after 50 ms, so that it
// costs nothing on the fast path. Elsewhere, and on connections without a file
// descriptor, a reader in the background looks ahead into the front's buffer.
//
// # What is refused
//
// CONNECT, absolute-form targets, upgrades to WebSocket, bare line feeds, line
// folding. "Upgrade: h2c" is ignored: Java's client offers it on every plain
// connection and is content with HTTP/1.1.
package httpserver
