// Package schedulerhint is a webhook that gives Kubernetes' scheduler the node on which thaw
// wants a pod. It is called when a pod of a model is created, and adds a preferred node
// affinity for the node that platform/orchestrator has chosen, the one with the weights or
// with a GPU that is being released. It is a hint: if the node does not fit, the scheduler
// takes another.
//
// On up to 100 nodes the scheduler scores all and follows the hint wherever the pod fits. On
// more it stops once it has found enough fitting nodes (percentageOfNodesToScore: 46 of 100
// at 500 nodes), and a preferred node beyond them is not seen. Operators of large clusters
// who can configure the scheduler set that to 100; elsewhere weights come from a peer more
// often. TestClusterKwok (platform/knative/e2e) measures the share.
//
// Nothing depends on the webhook. It is registered with failurePolicy Ignore and a timeout
// of two seconds, and only for pods with the label thaw.dev/model: without it pods are
// created unchanged. So no error here ends the controller.
//
// Only the leading controller knows the chosen nodes, and API servers reach webhooks through
// a Service. So the Service (thaw-scheduler-hint) has no selector, and the leader writes its own
// address into the EndpointSlice. The certificate is made at the same time and never leaves
// the process; its authority is written into the registration. It is valid for a year; after
// half of that the next one is trusted before it is used. Both objects are checked once a
// minute. The installation creates them, and the slice is deleted with the Service.
//
// Every client that reaches the port can ask for the node of a revision's next pod. It is
// open because API servers present no client certificate by default.
package schedulerhint
