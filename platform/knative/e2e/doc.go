// Package e2e is the suite for clusters: thaw installed on a real Kubernetes with
// real Knative, and models deployed, asked, moved, broken and taken away, seen
// from outside. There is no code here that anything else uses.
//
// make cluster e2e runs it; without a cluster it is skipped. It changes settings
// of Knative and stops processes, so it belongs on a cluster of its own: the one
// of deploy/cluster, whose network it runs in and whose only node is this machine.
//
// TestCluster installs thaw once, with loaders that read weights from a small blob
// server of the test, and two GPUs that are numbers. Then comes what can go on at
// once ("together"), each in a namespace of its own, then what breaks things for
// all ("alone"), and at the end thaw is taken away and looked for. One of them by
// itself:
//
//	make e2e RUN=TestCluster/together/canary
//
// No test counts seconds, but those whose subject they are: a wait is bounded
// generously, and says what it saw last when the bound is reached.
package e2e
