// Package httpserver is the strict HTTP/1.1 server for clients' connections: it checks heads,
// bounds connections and bodies, passes requests of every path to one [Handler], writes its
// [Response], notices clients that leave, and drains; it neither routes nor reads JSON. It is the
// only importer of fiber and fasthttp.
//
// # The server and the handler
//
// [NewFiberServer] is the server of clients' connections. It stands behind a front, a
// net.Conn ([conn]) that reads and checks one request at a time and then shows the server
// a constant request line without fields or body: GET or HEAD, path "/". So one parser
// decides, and neither fasthttp's laxness (differing Content-Lengths, "xchunked", NUL in
// values, trailers merged into the head) nor its router's reading of a path matters (the
// tests have a second server behind the front, on net/http, and compare the two):
//
//   - The head is checked in one pass. What is not strict is answered 400 in OpenAI's
//     shape and the connection is closed. The tests have the corpus of such heads.
//   - A declared length is not allocated at once: the buffer grows with what has come.
//     Too large is 413, compressed 415, too slow 408. All bodies together have a bound
//     (503).
//   - A body that did not come with its head is read, and 100-continue answered, only
//     after [Options].Authorize has accepted the head. Of another at most 64 KiB (behind a
//     NetHTTPHandler 256 KiB) are read and dropped, so that the client sees the answer.
//   - The next request of a pipeline stays in the front until the answer before it is
//     written out.
//   - Connections are tracked; idle ones end when a drain begins, all at its deadline.
//   - Every write has a deadline, which ends a client that stops reading.
//
// A path of [Options].Receive has its body go to a [Receiver] as it comes, with a bound of
// its own: a file, which is never in memory whole.
//
// [NewNetHTTPHandler] is a handler for another net/http server, where requests come over
// HTTP/2 or on connections that also carry WebSockets. net/http parses heads there and
// its context reports departures; bodies have the same bounds.
//
// # Departure
//
// A client that leaves (closes, resets, or shuts down its sending side) is noticed while
// its request waits or streams: [Request.Context] is cancelled with [ErrGone]. On Linux
// one epoll set per server, parked on Go's netpoller, watches requests unanswered after
// 50 ms, so the fast path pays nothing. Elsewhere, and on connections without a file
// descriptor, a goroutine reads ahead into the front's buffer.
//
// # WebSockets
//
// A request for a path of [Options].Upgrades may ask for a WebSocket. Its handler may take
// the connection over by [Response].Upgrade: it stays one of the server's connections, with
// its slot, its write deadline and its part in a drain. What is spoken on it is not this
// package's.
//
// # What is refused
//
// CONNECT, absolute-form targets, upgrades, bare line feeds, line folding.
// "Upgrade: h2c" is ignored: Java's client offers it on every plain connection and then
// uses HTTP/1.1.
//
// [ProcTuner] keeps a program that forwards many small requests cheap.
//
// It is one idea: a strict HTTP/1.1 front whose servers answer alike, held to that by one
// conformance suite.
package httpserver
