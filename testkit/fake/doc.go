// Package fake is an engine with OpenAI's API and no model, for benchmarks and tests: it sends
// made-up tokens at once or at a pace, stalls or kills its process, as words in the request
// demand. It is the upstream of the gateway benchmark and of the tests with real clients, where a
// model's own time would hide the platform's.
//
// The demand is anywhere in the body, in words after "@fake":
//
//	"content":"@fake tokens=20 delay=10ms die=5"
//
// tokens is the number of chunks of a stream (64). delay is the interval at which they
// are sent, at the same moments for all streams (none). die=N kills the process by
// SIGKILL after the Nth, stall=N sends nothing after the Nth until the client
// disconnects. A body with "tools" is answered by a tool call. GET /stats returns the
// counters, GET /last the newest body.
//
// It parses HTTP itself: with net/http it would use more CPU time than the gateways it
// helps to measure.
package fake
