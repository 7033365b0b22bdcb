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
// TestClusterKwok is thaw on nodes that KWOK plays, 500 of them in make bench-kwok. Their API objects, their
// scheduling and everything of thaw's that decides are real; their loaders and
// engines are the test's: a link of each to the controller, and one server that answers
// at the addresses of all pods. What it watches for all the while is that no GPU is
// given away twice and nothing comes to a node that was closed.
//
// TestClusterScenes has two more nodes join the cluster and tells the stories that
// every backend has to bear (platform/orchestrator/scenario) on them: an engine of the test
// (testdata/scene) holds requests for as long as a story wants, nodes are lost by
// stopping all that speaks for them, the controller ends as kill -9 ends it. Before
// them, since it needs nodes as well, it looks that these lend each other weights.
//
// No test counts seconds, but those whose subject they are: a wait is bounded
// generously, and says what it saw last when the bound is reached.
package e2e
