// Package nodeloader is the process `thaw loader`, one per Kubernetes node: it downloads
// checkpoints into the node's store, also from other nodes, passes pods a checkpoint's open folder
// over a unix socket, and reports the store and pods' statuses to the controller.
//
// # The socket
//
// Shims dial DIR/sockets/loader.sock; platform/controlstream has the protocol. One staging serves
// all pods of a checkpoint (package loader), so ten pods of one model cost its bytes once.
// A pod's checkpoints stay in the store for as long as its connection lives. A pod has one
// connection: a second one of the same pod replaces it.
//
// # Which pod it is
//
// The kernel identifies the pod: the process at the other end (SO_PEERCRED) is in the
// pod's control group (/proc/PID/cgroup), of either version, made by either of kubelet's
// drivers. Nothing that the process sends counts. The process must still be the one that
// dialled (SO_PEERPIDFD, Linux 6.5): process ids are reused, and the next process may be
// of another pod. On older kernels the connection must still be open, which is the same
// unless the pod passes its end on to another of its own processes and exits within the
// microseconds until its group is read, and another pod's process gets its id in that
// time. Other processes of the node are refused; --allow-local admits them and is for
// tests. All of it needs the host's process ids (hostPID): without them every peer is
// process 0.
//
// # What a pod can do, and what it cannot
//
// A pod can have a checkpoint that it holds read again, and removed if a file of it is
// damaged: one at a time, and the node reads for one pod after another.
//
// A pod can have any source staged that this loader's credentials can read and that
// --allow-source permits, a bounded number at once, and hold the checkpoints; that can
// evict checkpoints that are not held, and fill the store up to --pod-bytes. It can report
// any status of its own replica; the controller accepts no other pod's from it.
//
// It cannot act for another pod, remove anything, write to the store, read or list other
// pods' checkpoints, or see a credential: errors carry none. Its input is bounded: a line
// is a MiB at most, and the connection is closed if the shim sends an invalid line or does
// not read. A pod's address is its own claim too; the controller compares it with that of
// Kubernetes.
//
// Folders of the node are not sources, except those named with --folder, which are copied
// into the store like any other source.
//
// # Other teams' weights
//
// A pod mounts the folder of the socket, DIR/sockets, and nothing else of DIR. The store is
// closed to all users but the loader's as well (Options.Private), down to the folders of
// blobs: a bind mount of any folder in it (Kubernetes' subPath) shows nothing, except one
// checkpoint's files to a pod that knows its digest. A checkpoint comes over the socket as an open
// folder. Its files can be read; the folder above it is closed too, so "files/.." leads
// nowhere, and nothing can be written, because the files are another user's. The shim
// makes links to it for its engine (platform/shim). Nothing is mounted for that, so
// kubelet meets no dead mounts.
//
// The sources that a pod can have staged are bounded by --allow-source for all teams, and
// for one team by the annotation thaw.dev/allow-source of its namespace. The controller
// sends the namespaces' lists and the owners of the node's pods (controlstream.Owners).
// They are stored, so that a new loader, or one without a controller, uses the last ones.
// While any namespace has a list, a pod of unknown owner waits a moment and is refused. So
// is any pod on a new node until the first list has come. A loader without --controller
// knows of no list.
//
// This holds for users other than root and the loader's (65533). The policy thaw-pods
// ensures that, and that pods mount no other folder, for all pods of teams' namespaces and
// for pods of Knative Services elsewhere. A user who may create other pods, of any user and
// with folders of the node, controls the node in any case.
//
// # Engines start after the whole checkpoint is staged
//
// On one machine an engine boots from a mount while its weights arrive (loader/mount). In
// pods it does not: all pods would see a mount below the store, kubelet would meet it when
// it is dead, and a mount of one pod alone takes a privileged container.
//
// # Prefetches
//
// The controller names what a pod will need while the pod is still being scheduled
// (Update.Prefetch). It is staged at low priority; the pod joins the staging, which gets
// full priority then, or gets a checkpoint at once that is complete and was listed within
// the last minute. A prefetch that no pod comes for within Options.PrefetchFor is
// cancelled; its bytes stay for the next staging. The staging of a pod that ended goes on
// as a prefetch: the pod may be restarted.
//
// # The controller
//
// There is one connection to the leading controller, see platform/controlstream: statuses
// of pods are sent on as they come, the node's heartbeat every 2 s and after a staging.
// Without a controller pods are still served, and blocks are exchanged with the known
// nodes.
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
// Staged checkpoints are read into the page cache for the engine that maps them next. Pages
// count towards the control group of their first reader: a limit on this process's memory
// would limit the models that start from memory, so the DaemonSet sets none. The process
// itself stays within 256 MiB.
package nodeloader
