package replica

import "time"

const (
	// termGrace is the time between SIGTERM and SIGKILL. It is short enough that
	// no process is left 2 s after a deadline: a vLLM that waits for its core
	// ignores SIGTERM.
	termGrace = 1200 * time.Millisecond
	// killWait bounds the wait for the exit of a killed group.
	killWait = 2 * time.Second
	// exitAfterError bounds the wait for an engine's exit after a call to it
	// failed, exitAfterProbe after a probe: the exit has the cause.
	exitAfterError, exitAfterProbe = 200 * time.Millisecond, 50 * time.Millisecond
	// deniedWait is how long a starting engine may refuse the credentials of the request
	// for its first token: more time does not change them.
	deniedWait = 10 * time.Second
	// spawnWait bounds the supervisor's answer to a spawn.
	spawnWait = 10 * time.Second
	// portTries bounds the starts of an engine whose free port was taken by
	// another process before it was bound.
	portTries = 3
	// parentWait bounds the wait for a warm interpreter that is starting; it is
	// at most a quarter of the model's start deadline as well.
	parentWait = 2 * time.Minute
	// problemEvery is how often a starting engine's problems are looked for.
	problemEvery = 2 * time.Second
	// freeEvery is how often a start that waits for free GPU memory looks again.
	freeEvery = 50 * time.Millisecond
	// leaseWait bounds the search for an adopted engine's checkpoint.
	leaseWait = 5 * time.Second
	// stagingReportEvery is how often progress of a staging is published.
	stagingReportEvery = 200 * time.Millisecond

	// probeWait bounds the request for one token from a suspected engine.
	probeWait = 5 * time.Second
	// probeTries is how many probes in a row an engine with a good /health may
	// answer with errors; probePause is the time between two of them, unless
	// the engine is suspected once more.
	probeTries, probePause = 3, 2 * time.Second
	// pollEvery is how often the metrics of a READY engine are read, busyEvery
	// those of one with requests, drainEvery those of a draining one. A hang is
	// found within hang + busyEvery + probeWait after the last token.
	pollEvery, busyEvery, drainEvery = 500 * time.Millisecond, 250 * time.Millisecond, 100 * time.Millisecond
	// pollWait bounds one reading; quickReadWait bounds one before or after a
	// probe, and one of /health.
	pollWait, quickReadWait = 2 * time.Second, 500 * time.Millisecond
	// healthLate bounds the wait for /health after /metrics has answered.
	healthLate = 100 * time.Millisecond
	// abortWait bounds the wait until the engine has dropped aborted requests.
	abortWait = 300 * time.Millisecond
)
