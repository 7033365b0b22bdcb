// Package batches serves OpenAI's Files and Batch API and runs the batches: lines are sent through
// the activator at low priority, grouped by model, and each gets exactly one entry in the output or
// errors, also across restarts; a line that a crash cut off is run again.
//
// # Lines
//
// A line is sent to the data path like a request of the one who made the batch, at priority
// low. Lines are grouped by model. A model that is READY is used first; of those that are
// cold one is loaded at a time (several where there are GPUs for them), all of its lines are
// run, and then the next one is loaded: the one with the most lines, or the one whose
// deadline is near.
//
// A cold model is loaded only on GPUs that no function in use needs: one that has had a
// request, other than lines, a moment ago. While such a request waits, no line is sent to a
// model of this server's, and for a while after it no cold model is loaded. So it waits for
// the line that runs, and for one switch of models. When the deadline of a batch demands it,
// lines run all the same.
//
// # Ends
//
// A refusal that may pass (429, 503) is tried again until the deadline, a failure a few
// times. An entry is appended to the batch's output or errors when the line has ended; the
// store says what a crash leaves. A line that ran when the process was killed is run again.
// A batch that was cancelled or has expired gets an error for each line without an entry.
//
// It is one idea: requests that may wait, and answers that are not lost.
package batches
