// Package e2e has only end-to-end tests: they install thaw on a real Kubernetes with Knative,
// deploy, call, move, break and remove models, and also run it on simulated nodes.
//
// make cluster e2e runs it; without a cluster it is skipped. It changes settings of Knative
// and stops processes, so it needs a cluster of its own: that of deploy/cluster, in whose
// network it runs and whose only node is this machine.
//
// TestCluster installs thaw once, with loaders that read weights from a small blob server
// of the test, and two GPUs that are mere numbers. Then come the tests that can run
// concurrently ("together"), each in its own namespace, then those that disturb the whole
// cluster ("alone"), and at the end thaw is removed. A single one:
//
//	make e2e RUN=TestCluster/together/canary
//
// TestClusterKwok runs thaw on nodes that KWOK simulates, 500 of them in make bench-kwok.
// Their API objects, their scheduling and all of thaw's decisions are real; loaders and
// engines are the test's: a control stream per node, and one server for the addresses of
// all pods. It checks all the while that no GPU is given away twice and that cordoned nodes
// get no pods.
//
// TestClusterScenes adds two nodes and runs the scenarios of every backend
// (testkit/scenario) on them: an engine of the test (testdata/scene) holds
// requests as long as a scenario needs, nodes are lost by stopping everything that reports
// for them, and the controller is ended by kill -9. Before that it checks that nodes stage
// weights from each other.
//
// Tests do not measure seconds unless time is their subject: waits have generous bounds and
// report the last observation when exceeded.
package e2e
