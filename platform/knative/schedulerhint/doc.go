// Package schedulerhint tells Kubernetes' scheduler on which node thaw wants a pod: a
// webhook that is asked when a pod of a model is made, and adds a preferred node
// affinity for the node that platform/orchestrator has chosen, the one where the weights
// are, or where a GPU is being given up for it. It is a hint: where that node does
// not fit, the scheduler takes another.
//
// How often a hint is followed is the scheduler's affair. On up to 100 nodes it looks
// at all and follows it wherever the pod fits. On more it stops looking once it has
// found enough nodes that fit (percentageOfNodesToScore: 46 of 100 at 500 nodes), and
// a preferred node beyond them is not seen. Who runs a large cluster and can configure
// its scheduler sets that to 100; elsewhere weights come from a peer more often.
// TestClusterKwok (platform/knative/e2e) tells the share.
//
// Nothing depends on it. The webhook is registered with failurePolicy Ignore and two
// seconds, and for pods with the label thaw.dev/model only: while it is away, or the
// controller does not know either, pods are made as they are and the scheduler
// decides alone. So nothing here ends the controller.
//
// Only the controller that leads knows where a pod is to go, and API servers reach
// webhooks by a Service. So the Service (thaw-place) has no selector: who leads writes
// its own address into the Service's EndpointSlice. The certificate is made then, too,
// and never leaves the process: its authority is written into the registration. It is
// valid for a year; when half of that is over, another one is added before it is used.
// Both objects are looked after once a minute. They are made by whoever installs thaw,
// and the slice goes with the Service.
//
// Anybody who reaches the port can ask where the next pod of a revision is to go, and
// learns the name of a node. It is open because API servers show no certificate of
// their own unless their operator sets one up.
package schedulerhint
