// Package openai reads and writes the bytes of OpenAI's API for a gateway: it checks a body
// without decoding it whole, lists endpoints, makes errors, reads usage, edits event streams; it
// is no client.
//
// The package works on bytes only. Which model exists, which key may call it and when
// to wait are decided by the activator. The rules were measured against real clients;
// each stands beside the function that keeps it. The three most important:
//
//   - A comment on a held stream ends with one newline, never with a blank
//     line: openai-go 1.12 and 3.8 decode an empty event from any blank line.
//   - An error inside a stream is a bare "data:" line without an "event:" line:
//     openai-python 1.3.9 to 1.12 drop named events. The messages and responses endpoints
//     have a named one, which their clients look for.
//   - Retry-After never exceeds 55 s: clients ignore more, sleep it out unbounded, or
//     stop retrying.
//
// The trust boundary is [Peek]. An engine's JSON parser may take the last of
// two "model" keys where ours took the first, and then a caller reaches a model
// that policy denied. So a body is accepted only if every strict parser reads
// it alike: the fuzz tests hold Peek against encoding/json/v2.
//
// An engine is shared by many callers, so [Peek] also refuses parameters that multiply
// an engine's work (bounds.go) or make it fetch something (media.go), and [Public] lists
// the endpoints that are open to callers. Neither changes the bytes that pass.
//
// It is one idea, the wire of OpenAI's API: what a gateway reads of its bytes, and the few
// that it changes.
package openai
