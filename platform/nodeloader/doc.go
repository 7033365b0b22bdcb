// Package nodeloader is the loader of a node in a cluster (thaw loader): one process per
// node, which brings checkpoints into the node's store for the pods there, and
// tells the controller what the node has and what its pods say.
//
// # The socket
//
// Shims dial DIR/loader.sock and speak as platform/controlstream has it. One staging serves
// all who want the same (package loader), so ten pods of one model cost its bytes
// once. What a pod was given stays in the store for as long as its connection
// lives. A pod has one connection: a second one of the same pod takes its place.
//
// # Who asks
//
// A connection is a pod's when the kernel says so: the process at its other end
// (SO_PEERCRED) is in that pod's control group (/proc/PID/cgroup), of either
// version, made by either of kubelet's drivers. Nothing that is said counts. The
// process must still be the one that dialled (SO_PEERPIDFD, Linux 6.5): a number of
// a process is given anew, and who has it now may be of another pod. Older kernels
// are asked whether the connection has been hung up, which is the same unless the
// pod passes its end on to another of its own processes and exits within the
// microseconds until its group is read, and another pod's process gets its number
// in that time. Other processes of the node are refused; --allow-local lets them in
// and is for tests. All of it needs the host's process numbers (hostPID): without
// them every peer is process 0.
//
// # What a pod can do, and what it cannot
//
// It can have any source staged that this loader's credentials can read and that
// --allow-source lets through, so many at once, and hold what was staged; by that
// it can push out of the store unheld checkpoints, and fill it with what it holds,
// up to --pod-bytes. It can say what it likes of its own replica: the status of a
// pod is its word for itself, and the controller takes no other pod's from it.
//
// It cannot speak for another pod, have anything removed, write to the store, read or
// list what others staged, or see a credential: errors carry none. What it says is
// bounded: a line is a MiB at most, a shim that does not read what it is told is
// hung up on, as is one that says nothing sensible. A pod's own address is its word
// too; who routes by it compares it with what Kubernetes says.
//
// Folders of the node are no source, but those named with --folder, which are
// copied into the store like any other.
//
// # Other teams' weights
//
// A pod has the store's folder mounted, for the socket, and of the store itself it can
// see nothing: it is closed to all users but the loader's (Options.Private). What was
// staged for it comes over the socket as the open folder of that checkpoint. Its
// files can be read; what is around it cannot be reached from there, since the folder
// above it is closed too ("files/.."), and nothing of it can be written: it is another
// user's. The shim makes links to it for its engine (platform/shim). Nothing is mounted
// anywhere for that, so there is nothing that kubelet could trip over.
//
// What a pod can have staged is bounded by --allow-source for all, and by the annotation
// thaw.dev/allow-source of its namespace for one team. The controller says which
// namespaces have a list and whose each pod of the node is (link.Owners); it is written
// down, so that a loader that has just begun, or that has no controller, goes by what was
// said last. A pod of unknown owner waits a moment and is refused, while any
// namespace has a list. A loader that no controller has ever spoken to knows of no list.
//
// That holds for users that are not the loader's (65533) and not root. In the
// namespaces of teams the policy thaw-pods sees to it; elsewhere who may make pods that
// run as they like and have folders of the node has the node in any case.
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
// # Ahead of the pod
//
// The controller names what a pod will want while it is still being scheduled
// (Down.Prefetch). That is staged at low priority; the pod that comes joins, which
// gives it full priority, or is given at once what is here already and was listed
// within the last minute. A prefetch that no pod came for within Options.PrefetchFor is called
// off; what had arrived stays for the next. The same goes for what a pod wanted that
// is gone: pods are started again.
//
// # The controller
//
// One connection to the controller that leads, see platform/controlstream: what pods say goes
// out as it comes, the node's heartbeat every 2 s and when something was staged.
// While there is no controller pods are served all the same, and blocks go between
// the nodes that were known.
//
// # It may be killed at any time
//
// Shims serve on, dial the next loader, and say everything anew. A staging is taken
// up from the parts on the disk (loader/store). Which checkpoints pods hold is
// written down, and the next loader holds them for a minute, until their pods have
// come back to it: nothing is evicted under an engine that is still opening files.
//
// # Memory
//
// What is staged is read into the page cache for the engine that maps it next.
// Pages count as those of the group of their first reader: a limit on this
// process's memory would be a limit on the models that start from memory, and so
// the DaemonSet sets none. The process itself stays within 256 MiB.
package nodeloader
