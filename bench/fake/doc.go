// Package fake is an engine that generates nothing: it answers OpenAI's
// requests at once, or paced, or dies in the middle, as the request itself asks.
// It is the upstream of the gateway bench and of the tests with real clients,
// where a model's own time would only hide the platform's.
//
// A request says what it wants anywhere in its body, in words after "@fake":
//
//	"content":"@fake tokens=20 delay=10ms die=5"
//
// tokens is the number of chunks of a stream (64), delay the beat on which they
// go out, the same for all streams (none), die=N ends the process by SIGKILL
// after the Nth, stall=N goes silent after the Nth until the client leaves. A
// body with "tools" is answered by a tool call. GET /stats tells what it has
// seen, GET /last the newest body.
//
// It reads HTTP by hand, on purpose: with net/http it would use more processor
// time than the gateways it is there to measure.
package fake
