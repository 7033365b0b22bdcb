// Package knative is where thaw meets Knative Serving. It is the only room that
// may import knative.dev or k8s.io; nothing of it is in the thaw program, but in
// thaw-knative, which lies beside it.
//
// # A model is a Knative Service
//
// Render turns a model file into one, Cluster applies, lists and removes them;
// kubectl does all of that as well. No kind of our own is added to a cluster.
//
//	metadata.name, namespace    name and team: a team is a namespace
//	metadata.annotations        networking.knative.dev/ingress.class: thaw.ingress.networking.knative.dev
//	                            thaw.dev/model: the whole model file, for controller and activator
//	template annotations        autoscaling.knative.dev/class: thaw.dev; min-scale, max-scale, target
//	                            from spec.scale; initial-scale 0;
//	                            progress-deadline is deadlines.stage + deadlines.start
//	timeoutSeconds              10m unless said otherwise: Knative's own bound
//	responseStartTimeoutSeconds queue.wait + deadlines.firstToken, within that
//	container                   the engine's image, run by thaw's shim
//	limits = requests           nvidia.com/gpu; memory (and 64 MiB for the shim) where the file says it
//	requests                    cpu: resources.cpu, else one for each GPU and half of one without, for
//	                            vllm, sglang and llamacpp; never a limit
//	spec.pod                    nodeSelector, tolerations, runtimeClassName, imagePullSecrets,
//	                            serviceAccountName and priorityClassName, as they are
//
// Any Service whose template names the class is a model, also one written by hand;
// any other is never changed or removed. Who deploys owns what is rendered (server
// side apply, by force), and leaves what others add.
//
// A change of spec.queue or scale.idle makes no new revision: they stand in the
// Service's annotation alone. (A Service written by hand says how long it is kept by
// Knative's scale-to-zero-pod-retention-period.) A new revision starts new pods, so what is in the template is
// what a running replica was started with. Knative's own annotations of scaling
// are of that sort.
//
// # What the shim finds
//
//	argv         runtime; and in the init container: runtime --install PATH, which copies the program to PATH
//	PORT         where it answers: /readyz with 200 after a real token, and the engine's API
//	THAW_MODEL   the model file, as YAML, less scale and queue
//	THAW_STORE   the loader's folder on the node, read-only: checkpoints, and the loader's socket
//	/tmp         the only place on a disk that can be written, and HOME
//	/dev/shm     memory, for vllm and sglang
//
// It is uid 65532 with a read-only root, no capability, no way to a privilege,
// RuntimeDefault seccomp and no token of Kubernetes. The engine's args and env are
// in THAW_MODEL and not the container's: one document, one decoder. Where the
// engine is ember, its image is thaw's and nothing is brought in.
//
// The store is one folder for all teams of a node, and readable by each pod: who
// may run a pod on a node can read the weights that lie there.
//
// # What Knative has to allow
//
// Features lists it, and thaw doctor --to knative checks it: init containers and host
// paths are off in Knative unless turned on, as is a first scale of zero. PodFeatures
// are for files that use them alone (spec.pod: kubernetes.podspec-nodeselector,
// -tolerations, -runtimeclassname, -priorityclassname; secrets and accounts need
// none); doctor -f looks, and deploy refuses with the command that turns one on. The
// security context stands at the containers, because at the pod it wants a flag.
// Empty folders as volumes are on unless turned off.
// A namespace that enforces Kubernetes' baseline or restricted pods has no host
// path either: there a model is taken and its pods are not, so doctor looks at the
// namespace as well.
//
// # Where a pod may be, and what it may gain by that
//
// spec.pod is what nodes with GPUs want of a pod, and agents do not read it. A
// namespace's annotation thaw.dev/pod (team create --pod FILE) says it for all its
// models with GPUs, so that a file need not; deploy puts it into what it renders, and
// what a file says wins. The controller reads both from the revision, however that
// was written, and places by them.
//
// Nothing is gained by it that the namespace does not allow: who deploys does so with
// rights of his own, and could write the same into the Service by hand; thaw makes no
// pods. An account gives a rendered pod no token (automountServiceAccountToken is
// false); what else a cluster gives by account, such as a workload identity, is
// anybody's who may write Services in that namespace, with thaw or without. A runtime class is what the operator made of it. A priority above the
// cluster's own parts is refused in the file, and in namespaces of teams by the
// policy thaw-pods. But Knative's switches are the whole cluster's: where tolerations
// are on, a taint keeps no team off a node any more that may write a Service; who
// parts teams by taints has to part them by a policy as well.
//
// # Before a deploy
//
// Cluster.Check looks whether a model could run at all: what Knative allows, whether
// thaw is there, whether a node would take it, were it empty, and whether a quota
// would. What who asks may not see is left out, and is told where it fails.
// --skip-preflight is for those who deploy first and build the cluster after.
//
// # Who does the rest
//
//	control    the controller: who runs, where, and who makes room (platform/orchestrator)
//	autoscale  what Kubernetes is told of it: PodAutoscalers of class thaw.dev
//	ingress    Ingresses of our class, as routes for the activators
//	place      the scheduler is told where a pod is wanted
//	team       namespaces as teams: quotas, limits, keys
//	install    the objects of an installation, and every right with its reason
//	e2e        the suite on a real cluster
//
// The activator, the loader and the shim need nothing of Kubernetes and lie outside:
// platform/controlstream, gateway, daemon and pod.
//
// # Scaling as Knative scales
//
// How many replicas a load asks for is decided in platform/placement (Autoscale,
// Load, Policy.Want), by the rules of Knative's default autoscaler, KPA: a long
// window and a short one, a target, a panic threshold, rates up and down, a delay
// before scaling down. The tests here hold that to KPA itself
// (knative.dev/serving/pkg/autoscaler/scaling): both are fed the same random
// loads, with pods that become ready late, and every decision must be the same
// number; the windows are compared with KPA's as well.
//
// What differs is meant to, and can be turned off: Autoscale.Patient turns off
// the first two, and is on in the comparison.
//
//   - Requests that are held have replicas started at once. KPA counts them too,
//     but only as a mean over the last seconds; somebody waits.
//   - A panic, the delay and the rate down keep replicas that are there. In KPA
//     they also go on starting what a burst asked for that is over; a start costs
//     a GPU for a minute and may evict another model.
//   - The last replica ends when nothing was asked for the model's idle time,
//     counted from the end of the last request and from READY. KPA waits for its
//     windows to be empty and then for a grace and a retention period; these are
//     not part of its decision but of the reconciler's, which is not compared.
//   - A load is forgotten when its windows are empty and nothing is desired any
//     more. KPA keeps its window for as long as the revision exists.
//   - Replicas found running by a new orchestrator are kept for a window: as in
//     KPA (Load.Adopt).
//   - Not there: requests per second as the metric, activation scale, the
//     exponentially weighted window, excess burst capacity (our activator never
//     leaves the path), revisions that no route reaches (a function that is gone
//     ends at once).
//
// The settings correspond so:
//
//	Stable       stable-window
//	Panic        panic-window-percentage of it
//	Threshold    panic-threshold-percentage / 100
//	Utilisation  container-concurrency-target-percentage / 100 (KPA: 70, ours: 100)
//	MaxUp        max-scale-up-rate
//	MaxDown      max-scale-down-rate
//	Delay        scale-down-delay
//	Every        the autoscaler's tick, 2 s
//	Bucket       its bucket, 1 s
package knative
