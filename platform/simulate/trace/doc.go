// Package trace reads request traces (logs of thaw serve, Azure, Mooncake) or generates them, and
// assigns them to models: which function is requested when, and with how many tokens.
//
// Formats, detected by how a file begins:
//
//	thaw             the log of thaw serve, text or JSON: one line per request, written at its end
//	azure-functions  CSV: hashes of function, app and owner, then calls in each minute of a day
//	mooncake         one JSON object per line: timestamp in ms, input_length, output_length
//	azure-llm        CSV: TIMESTAMP, ContextTokens, GeneratedTokens
//	gen              parameters of a generated trace (Spec): Zipf, bursts, day and night
//
// A trace is streamed, once for each run: ten million requests are never in memory at
// once. Opening a file reads it once. This reports every line that does not parse before
// a simulation begins, and measures how far lines are out of order (a log is ordered by
// the ends of requests, a trace by their starts). The stream is then sorted exactly
// while it buffers only the overlap.
//
// A trace of calls per minute has no seconds: its calls are drawn uniformly over the
// minute from the seed. Mapped names the ways to assign a trace without function names,
// or with unknown ones, to models.
package trace
