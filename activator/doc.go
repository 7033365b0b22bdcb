// Package activator serves inference requests (OpenAI's API, Anthropic's messages): it checks the
// caller's key and limits, finds the model, Router, Composition or Remote that is named, has cold
// models started, queues until a replica has a free slot, and streams the engine's or Remote's
// answer.
//
// A request is parsed as far as needed (openai), its caller identified and counted
// against the team's limits (auth), its function found (snapshot) and the request
// queued (admission). Where a READY replica has a free slot it is admitted at once.
// Otherwise it waits; the first waiting request wakes the function, and Publish of a
// READY replica admits waiting requests before it returns. A held stream gets
// comments and no-op chunks, a plain request silence or padding, in the forms that
// real clients accept.
//
// The first requests of a queue are also sent to the shim of a starting replica
// (early.go), so that no other process lies between READY and the engine's first
// request.
//
// A request ends in exactly one of: the engine's own end, a typed error, an error
// frame, an abort, or the client's leaving. finish is the one place that gives back
// what the request held. A stream that breaks never ends cleanly, and a request is
// never retried after the engine's first byte.
//
// An engine that fails before the first byte costs the client nothing: the request
// goes to another replica, once. That holds for a broken connection, for an answer that is no
// HTTP, for silence, and for an error of status 500 or more that the engine puts first into its
// stream. The only replica is asked again itself, after a cool-down of a second, unless the
// platform has replaced it by then: most of these failures pass, and what is no HTTP may be
// bytes of an earlier request on the same connection. Other errors
// of an engine reach the client in the engine's words, with their status, type and code,
// held or not (package answer). Later failures are reported to the client and counted;
// [DONE] is no success.
//
// An adapter is requested as NAME:ADAPTER and goes to a replica that has it loaded.
// Where none has, only this request waits while one loads it.
//
// A name may be an alias that is split over functions by weight, as a Knative
// Service over its revisions. Clients see the service's name, the log names the
// revision. A request whose function is known by its host (ServeAs) may name any
// model. A request outside OpenAI's API is proxied by its caller, and has the same
// queue, wake, retry and accounting by Reserve.
//
// Snapshots of functions and forecasts are pushed to the activator. It calls the
// platform in three ways that do not block (Waker), and to load an adapter in one
// that does (Adapters).
//
// The rules of holding, the error rows and the header fields were measured with real
// clients; an odd number (one newline after a comment, no Retry-After above 55 s) is
// there because a client broke on another.
//
// It is one idea, the life of one request: each file is a part of that way, and all of
// them work on the same request. What is asked of which function is its request, the place
// in the queue and the slot its wait, the exchange with an engine or a Remote its attempt;
// proxyRequest has the order of them, and the one end.
package activator
