// Package pods lends the interpreter of a node to its pods: it forks an engine into
// the pod that asks. runtime/forkserver/pods.md says what a pod could want of that, and why
// it does not get it; the tests here are its sentences.
//
// # Who does what
//
// The host (this package, in Go) keeps one interpreter (runtime/forkserver, parent.py with
// fd:3), listens on warm/s in the node's store, and decides. The interpreter hears the
// host alone, on a socket without a name; it never hears a pod. Neither reads a byte
// of what a pod says: that is the forked process's, once it is the pod's.
//
//	pod dials            who it is: SO_PEERCRED and SO_PEERPIDFD, held to the end; its
//	                     pod by control group; how often it has asked
//	host looks           the process as it is confined (state), its seccomp filters by
//	                     ptrace, the files that the interpreter has and it must have
//	interpreter forks    out: the host moves the child into the pod's groups, and gives
//	                     it its limits; then namespaces, a fork into the process
//	                     namespace, an orphan of it: the pod's first process is its
//	                     parent, which is the shim
//	child confines       labels, umask, groups, bounding set, user, capabilities,
//	                     no_new_privs, filters in their order; here
//	host looks again     all of it read back and compared with the process that asked;
//	                     descriptors; the parent. Something differs: it is killed
//	child reads          what the keeper of the pod says, as of any warm parent
//
// # Whom
//
// A child is what the process that asked is, so it has nothing that this one could not
// have executed by itself. Only processes that are confined as thaw renders them are
// asked for: not root, no capability, no_new_privs, at least one filter, namespaces of
// their own, first of their container. All others, other images, and pods that ask too
// often are refused with one line, and their engine starts plainly.
package pods
