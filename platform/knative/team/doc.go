// Package team reads teams from Kubernetes namespaces (quotas, limits, API keys: annotations,
// ResourceQuotas, a Secret), follows their changes (Watcher), creates and deletes keys, and makes
// the manifests of a team's namespace; it enforces no limit. A team file and a namespace correspond
// so:
//
//	spec.gpus.max               ResourceQuota: requests.nvidia.com/gpu (the least of several)
//	spec.gpus.guaranteed        annotation thaw.dev/gpus-guaranteed
//	spec.limits                 annotations thaw.dev/concurrent, held-requests, requests-per-minute,
//	                            tokens-per-minute, cold-starts-per-hour, gpu-seconds-per-day, store-bytes
//	spec.priority.max           annotation thaw.dev/priority-max
//	keys                        the Secret thaw-keys, an entry for each: the hash, never the key
//
// The right to annotate a namespace is the right to set its limits, so a team does not have
// it: Render grants rights within the namespace only. A team may create and delete its own
// keys; a key belongs to the namespace of its Secret.
//
// Watcher reads all namespaces and keys again after each change and passes them on.
//
// A team's budget is in GPU seconds per day. thaw knows no price of a GPU, so there is no
// limit in money.
//
// The NetworkPolicy of Render admits the activators and the team itself to the team's pods,
// and Knative's activator, autoscaler and queue-proxy, which need it. A cluster whose network
// enforces no policies (such as the test cluster's bridge) ignores it.
package team
