// Package schedulerhint is an admission webhook that gives a new pod of a model a preferred
// affinity to the node that the orchestrator chose; Kubernetes' scheduler may choose another. It is
// called when a pod of a model is created, and adds a preferred node affinity for the node that
// platform/orchestrator has chosen, the one with the weights or with a GPU that is being released.
// It is a hint: if the node does not fit, the scheduler takes another.
//
// On up to 100 nodes the scheduler scores all and follows the hint wherever the pod fits. On
// more it stops once it has found enough fitting nodes (percentageOfNodesToScore: 46 of 100
// at 500 nodes), and a preferred node beyond them is not seen. Operators of large clusters
// who can configure the scheduler set that to 100; elsewhere weights come from a peer more
// often. A test in platform/knative/e2e (kwok_test.go) measures the share.
//
// Nothing depends on the webhook. It is registered with failurePolicy Ignore and a timeout
// of two seconds, and only for pods with the label thaw.dev/model: without it pods are
// created unchanged. So no error here ends the controller.
//
// Only the leading controller knows the chosen nodes, and API servers reach webhooks through
// a Service. So the Service (thaw-scheduler-hint) has no selector, and the leader writes its own
// address into the EndpointSlice, which is deleted with the Service.
//
// The certificate is in the Secret thaw-scheduler-hint-tls, which the installation or the
// first leader creates; its authority signs nothing else. The registration must trust that
// authority. thaw-knative install writes it there, an administrator does so elsewhere
// (TrustCommand), and the controller has no right to: a webhook's registration can be made
// to send every object of the cluster to it, Secrets included, and admission policies do
// not apply to registrations. The certificate is valid for ten years; install renews it
// after half of that.
//
// Every client that reaches the port can ask for the node of a revision's next pod. It is
// open because API servers present no client certificate by default.
package schedulerhint
