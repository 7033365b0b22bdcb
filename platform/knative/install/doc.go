// Package install makes the Kubernetes objects of a thaw installation from embedded manifests and
// options, applies them in a fixed namespace, waits until they run, and removes them (refused while
// models exist, unless forced); it installs no Knative.
//
// The objects are the files of deploy/kustomize/base, which kubectl apply -k applies as
// well; Objects sets the image and the options of a cluster. The Helm chart
// (deploy/helm/thaw) renders the same objects; a test compares them. There are no hooks and
// no secret in an installation: the controller's init container creates the Secret
// thaw-control-tls if it is missing (Token), and the other pods wait for that volume. Apply
// creates it first, so that they need not wait.
//
// # Rights
//
// rights_test.go lists every verb granted to the controller, with its reason; no other part
// has rights. TestRights compares the list with the files.
//
// # What stays after a removal
//
// Remove deletes what Objects made, what the controller created in thaw's namespace, and its
// annotations on nodes. While models exist it refuses, since they would no longer be scaled
// and their Ingresses not released. The loaders' checkpoints stay on the nodes' disks, where
// a new installation finds them.
package install
