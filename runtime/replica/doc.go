// Package replica runs one replica (a copy of a model in an engine) as a state machine: it has a
// Stager fetch the files and the supervisor start the engine, detects readiness, failures and
// hangs, loads adapters, and sleeps, wakes and drains on command; after a failure the platform
// starts another. The states are:
//
//	DOWNLOADING -> LOADING_TO_GPU -> READY <-> SLEEPING
//	      \            |      ^         |         |   |
//	       \           |      '---------+- WakeUp '   |
//	        \          |                v             |
//	         \         |             DRAINING <-------'
//	          v        v                v
//	               FAILED           UNLOADED
//
// One goroutine (Run) owns the state. Each state is a function that returns the next
// one. Commands (Unload, CancelStart, Suspect, Sleep, WakeUp) never block; changes are
// reported to OnChange in order. Staging, the engine's start and probes run in
// goroutines of their own and report on channels, so a command or an exit is handled
// at once.
//
// READY means that the engine has generated a token since it was started or adopted. Its
// start deadline bounds both the wait for its health and for that token: until then
// errors of it are no end, but for a refusal of the request's credentials. READY ends when
//
//   - the supervisor reports the engine's exit (milliseconds),
//   - no token came for the model's hang deadline (firstToken while a request waits
//     for its first), or /metrics did not answer for as long, and then a request for
//     one token is not answered within 5 s,
//   - the owner suspects the engine (Suspect) and that request fails. Where it is answered
//     with an error, by an engine with a good /health, three in a row must be.
//
// Our own requests show life as well (Options.Traffic): an engine that sent a byte within
// its hang deadline works. One whose tokens are not counted may do one thing at a time:
// while a request waits for its first byte, and firstToken has not passed, an unanswered
// probe proves nothing. The requests of a hung engine are ended before it is killed, so
// that they do not count as in flight at a crash.
//
// # Starts
//
// If the stager is an EarlyStager and the engine reads its files once, the engine is
// started while the checkpoint arrives; READY still needs every byte verified. The
// process is forked from the warm interpreter that Options.ForkParent names, else
// executed; the status has which, and why. The log of a known engine (vLLM) supplies
// phases and their parts; a start that the log reports as failed is ended. On GPUs
// the start waits until the model's memory is free, until its deadline: then it fails
// with insufficient_gpu_memory and the processes of others that hold it.
//
// # Sleep
//
// SLEEPING begins when no new requests are sent. Requests in flight finish, for at
// most the drain deadline, then the engine frees its memory and SleepLevel is set. A
// request that reaches a sleeping engine wakes it. WakeUp is a start of its own:
// LOADING_TO_GPU, with phases that count from there.
//
// # Adapters
//
// LoadAdapter may be called from any goroutine: concurrent calls share one load, the
// adapter is validated before the engine reads it, the least recently used is
// unloaded for it.
//
// # Ends
//
// A drain waits for requests in flight, aborts the rest (Options.AbortRequests), then
// sends SIGTERM, then SIGKILL to the group. The supervisor removes what the engine
// leaves in its scratch folder and in shared memory. No process is left 2 s after the
// drain deadline.
//
// FAILED has the root cause, one line for people. Retries are the platform's, but for one:
// an engine that fails to load as it does on a damaged file has its checkpoint verified.
// If a file is damaged the replica is DOWNLOADING again, and the engine is started once
// more.
//
// When Run ends because its ctx ended, the process stays with the supervisor: the next
// agent adopts it (Adopt), or the supervisor ends it. Unload ends the process.
//
// # Parts
//
// A Replica holds the state in parts, each with its own methods: the commands that Run has not
// taken, the report (the status and its phases), the staged files, the process, the memory of
// the GPUs and the adapters. A state with much of its own is a type: boot, monitor, sleep.
//
// The package is one idea, the state machine: its states share the process, the
// staging and the phases of one replica, and each has a file.
package replica
