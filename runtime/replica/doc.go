// Package replica is the life of one replica: from the wish for one to the end
// of its process.
//
//	DOWNLOADING -> LOADING_TO_GPU -> READY <-> SLEEPING
//	      \            |      ^         |         |   |
//	       \           |      '---------+-- Rise -'   |
//	        \          |                v             |
//	         \         |             DRAINING <-------'
//	          v        v                v
//	               FAILED           UNLOADED
//
// One goroutine (Run) owns the state; there is one function per state, and
// each returns the next. The outside speaks to it by wishes that never block
// (Unload, CancelStart, Suspect, Sleep, Rise) and hears of changes by OnChange, in their order.
// Everything that waits (staging, the engine's start, probes) runs beside and
// reports on a channel, so a wish or a death is always heard at once.
//
// READY means that this engine has generated a token since it was started or
// adopted. It stops being so when
//
//   - the supervisor tells of its end (milliseconds),
//   - tokens flowed and none came for the model's hang deadline (firstToken
//     where a request still waits for its first), or /metrics went silent for
//     as long, and then a request for one token is not answered within 5 s,
//   - the owner suspects it (Suspect) and that same request fails.
//
// # Starts
//
// Where the stager is Early and the engine reads its files once, the engine is
// started while the checkpoint arrives; READY comes only when every byte is
// verified. The process is forked from a warm interpreter where Options.ForkParent
// names one, executed otherwise; the status says which, and why. An engine whose
// log is known (vLLM) tells its phases there, with parts; a start of which it
// says that it failed is not waited for. On GPUs the memory the model wants is
// seen free first, for a bounded time.
//
// # Sleep
//
// SLEEPING begins when no request is to come any more. Those in flight finish,
// for as long as a drain may take, then the engine gives its memory back, and
// only then SleepLevel says so. Whoever comes through all the same wakes it.
// Rise is a start of its own: LOADING_TO_GPU, phases that count from there.
//
// # Adapters
//
// LoadAdapter is for any goroutine: one load per adapter however many ask, the
// adapter looked at before the engine sees it, slots given by the last use.
//
// # Ends
//
// A drain waits for what is in flight, then ends it from our side (Options.AbortRequests),
// then SIGTERM, then SIGKILL to the group. What an engine leaves in its scratch
// folder and in shared memory goes with its process (the supervisor's business).
//
// FAILED carries the first root cause, one line for people. Trying again, and
// how soon, is the platform's business.
//
// Run ending because its ctx ended leaves the process to the supervisor: the next
// agent adopts it (Adopt), or the supervisor ends it. To end the process, Unload.
// Whatever the engine does, no process of it is left 2 s after the deadline of
// the drain.
package replica
