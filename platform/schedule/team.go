package schedule

import "github.com/thaw-dev/thaw/functions"

// Team is what a team is owed, and what it has had.
type Team struct {
	functions.TeamGPUs

	// What its replicas held lately, decayed: whose use is lower is placed first.
	Used   float64 // GPU-seconds
	Hosted float64 // seconds of replicas without GPUs

	// Barred: none of its functions is given GPUs before this moment, with the
	// verdict that says why. What it holds is not renewed: idle ones end as ever.
	// 0: it is free.
	Barred  Instant
	Verdict Verdict
}
