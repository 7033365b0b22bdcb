// Package clusterstate makes heartbeats for the orchestrator from a cluster's nodes, pods and
// loaders' reports, as if each node had an agent, and carries out its loads and unloads by changing
// the scale of Deployments and deleting pods; it decides no placement.
//
// The orchestrator names replicas, a Deployment only counts pods. A new replica is one
// more pod, and the first unbound pod of its revision is bound to it. The chosen node is
// a hint to the scheduler (platform/knative/schedulerhint); if the pod is scheduled
// elsewhere, the planned replica vanishes and the pod is adopted as another one. A pod
// that existed before this controller, or that replaces an evicted one, is a replica
// named after the pod, which the orchestrator adopts. Each of these waits is bounded: adoptDelay, replacementWait,
// unschedulable.
//
// A pod is READY when its shim reports so through the loader of its node, seconds before
// Kubernetes' condition. With control.Options.EarlyDispatch activators know the shim's address
// from its first report on (snapshot.Snapshot.EarlyReplicas), and the first queued
// requests wait there. A pod without the shim (a Service written by hand) is probed, as
// Knative's activator does it. Where no loader reports a shim, Kubernetes' condition
// counts.
//
// Reasons of failure that only Kubernetes knows: images that cannot be pulled,
// containers that exit, pods that fit no node, quotas.
//
// # The end of a pod
//
// A replica that ends has left the routes and has no request in flight. Its shim is
// told to stop, the Deployment is scaled down, and once the shim reports that the engine
// has exited the pod is deleted with grace period 0. Without that, Knative's proxy in it
// would wait half a minute and hold the pod's GPUs; the kubelet ignores a shorter grace
// period for a pod that is already terminating (SyncTerminatingPod). Pods without the
// shim end at Knative's pace. A Deployment grows again only once such pods are
// terminating (holdForTermination): one that shrinks and grows at once keeps the pod
// whose engine has exited.
package clusterstate
