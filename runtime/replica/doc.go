// Package replica is the life of one replica: from the wish for one to the end
// of its process.
//
//	DOWNLOADING -> LOADING_TO_GPU -> READY -> DRAINING -> UNLOADED
//	      \______________\____________\_____________________> FAILED
//
// One goroutine (Run) owns the state; there is one function per state, and
// each returns the next. The outside speaks to it by wishes that never block
// (Unload, CallOff, Suspect) and hears of changes by OnChange, in their order.
// Everything that waits (staging, the engine's start, probes) runs beside and
// reports on a channel, so a wish or a death is always heard at once.
//
// READY means that this engine has generated a token since it was started or
// adopted. It stops being so when
//
//   - the keeper tells of its end (milliseconds),
//   - tokens flowed and none came for the model's hang deadline (firstToken
//     where a request still waits for its first), or /metrics went silent for
//     as long, and then a request for one token is not answered within 5 s,
//   - the owner suspects it (Suspect) and that same request fails.
//
// FAILED carries the first root cause, one line for people. Trying again, and
// how soon, is the platform's business.
//
// Run ending because its ctx ended leaves the process to the keeper: the next
// agent adopts it (Adopt), or the keeper ends it. To end the process, Unload.
// Whatever the engine does, no process of it is left 2 s after the deadline of
// the drain.
package replica
