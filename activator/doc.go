// Package activator is the data path: request, who, decide, gate, balance,
// stream.
//
// A request is peeked at, its caller known and counted against the team's
// limits, its function found. Where a READY replica has a free slot it goes
// through at once. Where none has, it stands in the function's gate; the first
// to wait wakes the function, and when the platform publishes a READY replica
// the waiters are let through in that very call. Where a shim stands at the door of
// a replica that is not READY yet, the first of the line are sent there ahead
// (ahead.go), so that nothing lies between READY and the engine's first request: in a
// pod the word READY comes by way of three processes, and each of them waits for a
// processor at the very moment at which a pod comes up. Meanwhile each is told what
// happens, in the forms that real clients bear: comments and no-op chunks on a
// stream, silence (or padding, where the operator wants it) before a plain
// answer.
//
// What never happens here: a broken stream that ends cleanly, a second answer
// to one request, a retry after the engine's first byte, a wait without an
// end. An exchange ends in exactly one of: the engine's own end, a typed error,
// an error frame, an abort, or the client's leaving; end is the one place that
// gives back what it held.
//
// An engine that fails before the first byte has failed nobody yet: the request
// goes to another replica, once. That is so for a connection that dies, for
// silence, and for an error that the engine puts into its stream first, with
// status 200 and an end mark behind it. Later it is told, and counted as what it
// is: [DONE] is no success.
//
// An adapter is asked for as NAME:ADAPTER and goes to a replica that has it. Where
// none has, the request, and nobody else, waits while one loads it.
//
// A name may be an alias, split over functions by weight: that of a Knative Service
// over its revisions. Each request draws one; people read the service's name
// everywhere, and the revision's in the log alone. A request whose function is known
// by its host (ServeAs) may name any model. What is no call of OpenAI's API is
// carried by somebody else and has its place here all the same (Hold): same line,
// same wake, same second try, same accounts.
//
// The activator never asks the platform: pictures of functions (route) and
// forecasts are pushed to it. What it asks of the platform is three calls that
// do not block (Waker), and for an adapter one that does (Adapters).
//
// The rules of holding, the error rows and the header fields were measured
// against real clients; where a number looks odd (one newline after a comment,
// no Retry-After above 55 s), a client broke on another.
package activator
