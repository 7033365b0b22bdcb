// Package trace reads who asked for which model when, and makes such lists up.
//
// Formats, told apart by how a file begins:
//
//	thaw             what thaw serve logs, text or JSON: one line a request, written at its end
//	azure-functions  CSV: hashes of function, app and owner, then calls in each minute of a day
//	mooncake         a JSON object a line: timestamp in ms, input_length, output_length
//	azure-llm        CSV: TIMESTAMP, ContextTokens, GeneratedTokens
//	gen              no list but how to make one up (Spec): Zipf, bursts, day and night
//
// A trace is read as a stream, anew for each run over it: ten million requests
// never stand in memory. Opening a file reads it once: every line that does not
// parse is an error with its line before a simulation begins, and it is known
// then how far out of order the lines are (a log is in the order of the ends,
// and a trace in that of the beginnings), so that the stream can be put in order
// exactly while holding no more than what overlaps.
//
// A trace that counts calls by the minute says nothing of the seconds: calls are
// spread over their minute evenly at random, by the seed. One that names no
// models, or others than there are, is dealt among them as Map says.
package trace
