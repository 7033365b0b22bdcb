// Package openai knows the OpenAI wire format as far as a gateway must: it
// peeks at a request's body without decoding it, splices the two values a
// gateway may change, shapes errors as the official clients expect them, and
// writes and reads the lines of a server-sent event stream.
//
// Everything here works on bytes and decides nothing: which model exists, who
// may call it and when to wait is the activator's business. The rules it keeps
// were measured against real clients; each stands beside the function that
// keeps it. The three that bite most:
//
//   - A comment on a held stream ends with one newline, never with a blank
//     line: openai-go 1.12 and 3.8 decode an empty event from any blank line.
//   - An error inside a stream is a bare "data:" line without an "event:" line:
//     openai-python 1.3.9 to 1.12 drop named events.
//   - Retry-After never exceeds 55 s: clients ignore more, sleep it out unbounded, or
//     stop retrying.
//
// The trust boundary is [Peek]. An engine's JSON parser may take the last of
// two "model" keys where ours took the first, and then a caller reaches a model
// that policy denied. So a body is accepted only if every strict parser reads
// it alike: the fuzz tests hold Peek against encoding/json/v2.
//
// Beyond it, an engine is shared: what one request asks of it, all pay for. So
// [Peek] also refuses what multiplies an engine's work or reaches out of it (the
// bounds stand in one place, with what each is there for), and [Public] names
// the endpoints that anybody may reach. Neither changes a byte of what passes.
package openai
