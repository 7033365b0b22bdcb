// Package install puts thaw on a cluster and takes it away again.
//
// The objects are the files of deploy/kustomize/base, which kubectl apply -k takes
// as well; Objects sets the image and the few things that differ from cluster to
// cluster. The Helm chart (deploy/helm/thaw) renders the same ones, which a test
// of it holds. Nothing is a hook and no secret comes with an installation: the
// controller's init container makes the Secret thaw-control-tls where there is none
// (Token), and the others wait for it as a volume they cannot mount yet. Apply makes
// it first, so that nobody waits.
//
// # What it may do
//
// Rights lists every verb that the controller is granted, with the reason for it;
// nobody else is granted anything. A test fails on any difference, both ways.
//
// # What is left
//
// Remove deletes what Objects made, what the controller has made in thaw's own
// namespace, and what it has written on nodes. Models are somebody's own: while
// there are any, Remove refuses, since nothing would scale them or let their
// ingress go. What loaders have stored stays on the nodes' disks, in the folder of
// the DaemonSet: checkpoints are dear, and a new installation finds them.
package install
