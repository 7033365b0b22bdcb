// Package team reads namespaces as teams. A team file and a namespace say the same:
//
//	spec.gpus.max               ResourceQuota: requests.nvidia.com/gpu (the least of several)
//	spec.gpus.guaranteed        annotation thaw.dev/gpus-guaranteed
//	spec.limits                 annotations thaw.dev/concurrent, held-requests, requests-per-minute,
//	                            tokens-per-minute, cold-starts-per-hour, gpu-seconds-per-day, store-bytes
//	keys                        the Secret thaw-keys, an entry for each: the hash, never the key
//
// Who may write a namespace's annotations sets its limits, so a team has no right
// to that: Render gives it rights within its namespace only. A team may make and end
// its own keys; a key counts for the namespace that its Secret is in.
//
// What a team may spend is counted in GPU seconds of a day. There is no price of a
// GPU anywhere in thaw, and so no limit in money.
//
// The NetworkPolicy of Render lets the activators and the team itself reach the
// team's pods, and nobody else; Knative's own activator, autoscaler and queue-proxy
// have to as well. A cluster whose network enforces no policies (the test
// cluster's bridge is one) takes it and does nothing.
package team
