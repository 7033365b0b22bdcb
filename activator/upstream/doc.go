// Package upstream is the activator's HTTP/1.1 client for engines: it pools connections, streams
// answers, cancels by closing, keeps stray bytes from the next request, and sends again where a
// reused connection had died at once; it does not choose the replica.
//
// The two existing clients do not fit. net/http's costs 40 µs of CPU a request more than
// this one; fasthttp's pools a connection that still
// holds unread stream bytes, so that the request after an abandoned stream is
// answered with another's tokens, and its calls cannot be cancelled.
//
// What an engine needs, measured on vLLM: idle connections are dropped after
// 4 s because its server closes them after 5; the sending side is never shut
// down because a half-closed connection counts as a client that left; a request
// whose reused connection died at once and before any byte of an answer is sent once
// more on a fresh one, since the server had closed it before the request came. A
// connection that dies later may have had its request run, which is not sent again.
//
// An engine may write more than it was asked for, and HTTP/1.1 has no request ids. A
// connection is looked at right before a request is sent, and before the last part of a
// large one: bytes that are there end it, the request goes on another connection, and the
// engine gets one request per connection from then on. Bytes that come later reach the
// request that is under way. So that the answer which they displace does not reach the
// next one, a connection is used again only once it could have come (peer.rest). While
// connections rest, others serve (peer.grows).
//
// A late cancel must not close a connection under its next user. Every exchange has a
// generation; a cancel applies to its own generation only, and one lock orders it
// against the end of the exchange.
//
// A Client has no goroutine of its own beyond one timer for idle connections,
// which runs only while there are some.
package upstream
