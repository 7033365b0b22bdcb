// Package knative is where thaw meets Knative Serving. It is the only room that
// may import knative.dev or k8s.io; nothing of it is in the thaw program.
//
// # Scaling as Knative scales
//
// How many replicas a load asks for is decided in platform/schedule (Autoscale,
// Load, Policy.Want), by the rules of Knative's default autoscaler, KPA: a long
// window and a short one, a target, a panic threshold, rates up and down, a delay
// before scaling down. The tests here hold that to KPA itself
// (knative.dev/serving/pkg/autoscaler/scaling): both are fed the same random
// loads, with pods that become ready late, and every decision must be the same
// number; the windows are compared with KPA's as well.
//
// What differs is meant to, and can be turned off: Autoscale.Patient turns off
// the first two, and is on in the comparison.
//
//   - Requests that are held have replicas started at once. KPA counts them too,
//     but only as a mean over the last seconds; somebody waits.
//   - A panic, the delay and the rate down keep replicas that are there. In KPA
//     they also go on starting what a burst asked for that is over; a start costs
//     a GPU for a minute and may evict another model.
//   - The last replica ends when nothing was asked for the model's idle time,
//     counted from the end of the last request and from READY. KPA waits for its
//     windows to be empty and then for a grace and a retention period; these are
//     not part of its decision but of the reconciler's, which is not compared.
//   - A load is forgotten when its windows are empty and nothing is desired any
//     more. KPA keeps its window for as long as the revision exists.
//   - Replicas found running by a new orchestrator are kept for a window: as in
//     KPA (Load.Adopt).
//   - Not there: requests per second as the metric, activation scale, the
//     exponentially weighted window, excess burst capacity (our activator never
//     leaves the path), revisions that no route reaches (a function that is gone
//     ends at once).
//
// The settings correspond so:
//
//	Stable       stable-window
//	Panic        panic-window-percentage of it
//	Threshold    panic-threshold-percentage / 100
//	Utilisation  container-concurrency-target-percentage / 100 (KPA: 70, ours: 100)
//	MaxUp        max-scale-up-rate
//	MaxDown      max-scale-down-rate
//	Delay        scale-down-delay
//	Every        the autoscaler's tick, 2 s
//	Bucket       its bucket, 1 s
package knative
