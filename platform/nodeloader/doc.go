// Package nodeloader is the loader of a node in a cluster (thaw loader): one process per
// node, which downloads checkpoints into the node's store for its pods, and reports the
// node's checkpoints and the pods' statuses to the controller.
//
// # The socket
//
// Shims dial DIR/loader.sock; platform/controlstream has the protocol. One staging serves
// all pods of a checkpoint (package loader), so ten pods of one model cost its bytes once.
// A pod's checkpoints stay in the store for as long as its connection lives. A pod has one
// connection: a second one of the same pod replaces it.
//
// # Which pod it is
//
// The kernel tells: the process at the other end (SO_PEERCRED) is in the pod's control
// group (/proc/PID/cgroup), of either version, made by either of kubelet's drivers.
// Nothing that the process sends counts. The process must still be the one that dialled
// (SO_PEERPIDFD, Linux 6.5): process ids are reused, and the next process may be of
// another pod. On older kernels the connection must not have been hung up, which is the
// same unless the pod passes its end on to another of its own processes and exits within
// the microseconds until its group is read, and another pod's process gets its id in that
// time. Other processes of the node are refused; --allow-local admits them and is for
// tests. All of it needs the host's process ids (hostPID): without them every peer is
// process 0.
//
// # What a pod can do, and what it cannot
//
// It can have any source staged that this loader's credentials can read and that
// --allow-source permits, a bounded number at once, and hold what was staged; by that it
// can have unheld checkpoints evicted, and fill the store with what it holds, up to
// --pod-bytes. It can report any status of its own replica, and the controller takes no
// other pod's from it.
//
// It cannot speak for another pod, have anything removed, write to the store, read or
// list what others staged, or see a credential: errors carry none. What it sends is
// bounded: a line is a MiB at most, and the connection is closed if the shim sends an
// invalid line or does not read. A pod's address is its own claim too; the controller
// compares it with that of Kubernetes.
//
// Folders of the node are no source, except those named with --folder, which are copied
// into the store like any other source.
//
// # Other teams' weights
//
// A pod has the store's folder mounted, for the socket, and cannot read the store: it is
// closed to all users but the loader's (Options.Private). A checkpoint comes over the
// socket as an open folder. Its files can be read; what is around it cannot be reached
// from there, since the folder above it is closed too ("files/.."), and nothing of it can
// be written: it is another user's. The shim makes links to it for its engine
// (platform/shim). Nothing is mounted for that, so kubelet meets no dead mounts.
//
// What a pod can have staged is bounded by --allow-source for all, and by the annotation
// thaw.dev/allow-source of its namespace for one team. The controller sends the
// namespaces' lists and the owners of the node's pods (controlstream.Owners); they are
// stored, so that a loader that has just begun, or that has no controller, uses the last
// ones. A pod of unknown owner waits a moment and is refused, while any namespace has a
// list. A loader that never had a controller knows of no list.
//
// That holds for users that are not the loader's (65533) and not root. In the namespaces
// of teams the policy thaw-pods ensures that; elsewhere a user who may make pods of any
// user with folders of the node has the node in any case.
//
// # Engines start when all their bytes are here
//
// On one machine an engine boots from a mount while its weights come (loader/mount). In
// pods it does not. Knative lets mounts propagate into pods
// (kubernetes.podspec-volumes-mount-propagation), but a mount below the store would be
// seen by all pods, and kubelet would meet it when it is dead. The folder of a mount
// that is attached nowhere (fsmount) could go over the socket as checkpoints do, would
// be one pod's alone, and would end with the last who has it open. What that takes is a
// process with CAP_SYS_ADMIN and /dev/fuse, which is a privileged container, to make
// the mount and hand it to the loader, which has no capability. It is not built.
//
// # Prefetches
//
// The controller names what a pod will need while it is still being scheduled
// (Update.Prefetch). It is staged at low priority; the pod joins the staging, which
// gives it full priority, or gets at once what has arrived and was listed within the last
// minute. A prefetch that no pod came for within Options.PrefetchFor is called off; its
// bytes stay for the next. The same goes for the staging of a pod that has ended: pods
// are started again.
//
// # The controller
//
// There is one connection to the leading controller, see platform/controlstream: statuses
// of pods are passed on as they come, the node's heartbeat every 2 s and after a staging.
// Without a controller pods are served all the same, and blocks are exchanged with the
// nodes that were known.
//
// # It may be killed at any time
//
// Shims serve on, dial the next loader, and send everything again. A staging continues
// from the parts on the disk (loader/store). The digests that pods hold are stored, and
// the next loader holds them for a minute, until their pods have reconnected: nothing is
// evicted under an engine that is still opening files.
//
// # Memory
//
// What is staged is read into the page cache for the engine that maps it next.
// Pages count as those of the group of their first reader: a limit on this
// process's memory would be a limit on the models that start from memory, and so
// the DaemonSet sets none. The process itself stays within 256 MiB.
package nodeloader
