// Package pods forks vLLM engines from one warm Python interpreter of the node into the pods that
// ask for it, and checks before and after each fork that the pod's process is confined as thaw's
// pods are.
//
// # Parts
//
// The host (this package, in Go) keeps one interpreter (runtime/forkserver, parent.py with
// fd:3), listens on warm/s in the node's folder of sockets, and decides. The interpreter reads from
// the host alone, on a socket without a name, never from a pod. Neither reads a byte
// that a pod writes: the forked process does, once it is the pod's.
//
//	pod connects         its process: SO_PEERCRED and SO_PEERPIDFD, held to the end; its
//	                     pod by control group; its rate of requests
//	host inspects        the process as it is confined (state), its seccomp filters by
//	                     ptrace, the files that the interpreter has and it must have
//	interpreter forks    out: the host moves the child into the pod's groups, and gives
//	                     it its limits; then namespaces, a fork into the process
//	                     namespace, an orphan of it: the pod's first process is its
//	                     parent, which is the shim
//	child confines       labels, umask, groups, bounding set, user, capabilities,
//	                     no_new_privs, filters in their order; here
//	host inspects again  all of it read back and compared with the process that connected;
//	                     descriptors; the parent. Something differs: it is killed
//	child reads          the request of the pod's supervisor, as any warm parent does
//
// # Accepted processes
//
// A child is confined as the process that connected is, so it can do nothing that this
// process could not do itself. Only processes that are confined as thaw renders them are
// accepted: not root, no capability, no_new_privs, at least one filter, namespaces of
// their own, first of their container. All others, other images, and pods that ask too
// often are refused with one line, and their engine starts plainly.
package pods
