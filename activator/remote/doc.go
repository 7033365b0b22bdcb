// Package remote sends requests to others' OpenAI-compatible APIs (Remotes) behind a circuit
// breaker, limits and budgets, charges them to package spend, and tells the activator each
// Remote's state.
//
// A Remote enters the data path as a snapshot with one replica, so that its queue, slots
// and streams are those of models. [Remotes] publishes the snapshots. A [Call] is one
// request: [Remotes.Begin] admits it, before it is queued, by the Remote's circuit, its
// limits and the budgets, [Call.Do] sends it, [Call.Judge] reads the beginning of the
// answer, and [Call.End] charges what it cost, once.
//
// # The circuit
//
// Three failures in a row open the circuit: no connection, no TLS, no HTTP, an error of
// the server's, silence, an answer that is no JSON or breaks off. A key that is refused
// (401, 403) and a redirect open it at once. While it is open the Remote is failed, with
// the reason. After a pause that grows to a minute one request is let through as a probe.
// Errors of the caller's (4xx) and of a side that loads its model (503 with Retry-After)
// prove nothing bad. A 429 with Retry-After keeps all requests back until then.
//
// # What leaves
//
// Few header fields, built anew: the key, content type, accept, traceparent, our request
// id and thaw-depth. A connection goes to an address that was checked when it was dialled:
// public ones, loopback where the URL says so, others where the operator named the host
// (THAW_SOURCE_HOSTS). Redirects are not followed. The key is in no message; an error
// whose body repeats it is not passed on, and an answer has *** in its place.
//
// # Money
//
// The cost of a request is its tokens times the price. It is charged once, from the usage
// in the answer, or from an estimate where there is none, which the log marks. An answer
// with an error costs nothing. Budgets are those of package spend.
package remote
