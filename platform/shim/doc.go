// Package shim is the first process of a model's pod (`thaw runtime`): it gets the weights from
// the node's loader, starts and supervises the engine, proxies its API, and reports the status to
// the loader.
//
// # Inputs
//
// The model file in THAW_MODEL, a port, the loader's folder on the node (read-only,
// with the loader's socket in it), and /tmp. It has no access to Kubernetes, no
// token and no secret but the engine's key, which it makes itself; it is uid 65532
// on a read-only root. All that it writes lies below one folder in /tmp.
//
// # One replica
//
// The replica is that of every other node (runtime/replica): its phases, its token
// before READY, its hang detection, its adapters, its drain. What differs is who
// decides: the pod starts it, and SIGTERM or the loader ends it.
// The processes of the engine are the shim's own children: the supervisor runs in this
// process (a second one would cost its memory in each pod, and 20 ms of each
// start), so as the pod's first process it reaps all that end there. If it is
// killed the kernel ends all that is in the pod.
//
// A replica that fails ends the shim with exit code 1 and the cause in one line, in
// the container's log and in its termination message. If the loader has got the status,
// the shim first waits for SIGTERM: the controller deletes the pod and starts another
// when it is due, and Kubernetes would restart this container at once. Without a loader, Kubernetes restarts the container.
//
// # The weights
//
// They come as an open folder over the loader's socket, since the store is closed to
// the pod's user, and the engine is given a folder of links that lead through /proc to
// what this process has open (folder.go). A loader that sends none has its store open,
// and the weights are read there.
//
// # The loader
//
// One connection to the socket, see platform/controlstream. The weights are held for as long
// as it lives. Without a loader a start waits, and gives up after a bound that is
// logged; an engine without weights starts at once. A shim that has its weights
// serves on without a loader, dials again, and sends everything again.
//
// Commands come over that socket alone. A client of the port can use the model and read
// the timeline of its start, and nothing else: an engine's own paths to load code or to
// sleep stay on the pod's loopback.
//
//	/readyz    200 after a real token, until the drain begins
//	/livez     200 while the replica lives
//	/timeline  the phases so far, functions.Timeline; the last, first_token, is the way of
//	           the request that waited: until it was here, and the engine's own
//	/infer     a chat or a completion, by its body
//	/v1/…      what openai.Public names, and GET /v1/models
//
// The shim is the last check before the engine, also of requests that did not come through
// the gateway: each body is held to all bounds of openai, header fields are a fixed few,
// and the id that the engine gets is made here.
//
// An engine that fails to load as it does on a damaged file has the loader read its
// checkpoint again (controlstream.Verify). If a file is damaged the loader removes it, the
// checkpoint is staged again, and the engine is started once more.
//
// An adapter that a request names is loaded when it is first asked for.
//
// # Requests before READY
//
// The shim serves its port before there is an engine, and its first status has the
// endpoint. Activators that early dispatch is enabled for send it the requests that they
// would admit first, with the header field thaw-early: at most maxWaiting of them wait
// here, and go on to the engine in the moment it is READY, before READY is reported. If
// the start fails or the pod ends they get an error, on which the activator keeps their
// places in its queue.
// Other requests are refused until READY.
//
// # The end
//
// SIGTERM comes when queue-proxy has drained: Kubernetes waits for it (preStop)
// before it signals. Still the shim drains by itself, for requests that do not pass
// queue-proxy, such as those of activators: not ready at once, what is in flight ends
// within deadlines.drain, what comes all the same is still passed on, then the
// engine ends, and the shim with exit code 0. The loader's stop is the same with
// its own bound; after it the shim stays for a moment, without an engine, for
// Kubernetes would start it again where the pod is not yet to go.
//
// # Imports
//
// The seconds that a vLLM imports do not depend on its weights. So an interpreter
// of the pod's own begins with the pod, and when the weights are there both of the
// engine's processes are forked from it (runtime/forkserver): a start takes the longer of
// the two. It is of no other container, has forked one engine when it ends, and its
// starts are reported as plain ones, with a note. If it fails, or has another environment
// than the engine, the engine is executed.
//
// If the node has an interpreter for its pods (runtime/forkserver/pods, off unless it is
// installed), its facts are requested when the pod begins: both of the engine's processes
// are forked from it, and the start is reported as warm. The facts come from a fork, so
// it is known early whether the host forks into this pod; if it does not, the pod starts
// its own, and the timeline has the reason.
package shim
