// Package knative renders models as Knative Services, applies, lists and removes them, checks
// clusters, and keeps the Secrets and certificates of thaw's connections there; it does not install
// thaw. It is one idea: what the verbs of thaw-knative and the controller both know of a cluster.
// Only this package and those below it import knative.dev or k8s.io; they are part of thaw-knative,
// not of thaw. The activator, the loader and the shim do not use Kubernetes:
// platform/controlstream, gateway, nodeloader and shim.
//
// # A model is a Knative Service
//
// Render turns a model file into a Service; Cluster applies, lists and removes Services.
// kubectl can do the same, and no custom resource is needed.
//
//	metadata.name, namespace    name and team: a team is a namespace
//	metadata.annotations        networking.knative.dev/ingress.class: thaw.ingress.networking.knative.dev
//	                            thaw.dev/model: the whole model file, for controller and activator
//	template annotations        autoscaling.knative.dev/class: thaw.dev; min-scale, max-scale, target
//	                            from spec.scale; initial-scale 0;
//	                            progress-deadline is deadlines.stage + deadlines.start
//	timeoutSeconds              10m by default: Knative's own bound
//	responseStartTimeoutSeconds queue.wait + deadlines.firstToken, within that
//	container                   the engine's image, run by thaw's shim
//	limits = requests           nvidia.com/gpu; memory (plus 64 MiB for the shim) if the file has it
//	requests                    cpu: resources.cpu, else one for each GPU and half of one without, for
//	                            vllm, sglang and llamacpp; never a limit
//	spec.pod                    nodeSelector, tolerations, runtimeClassName, imagePullSecrets,
//	                            serviceAccountName and priorityClassName, unchanged
//
// Every Service whose template has the class is a model, also one written by hand; other
// Services are never changed or removed. Apply uses server side apply with force: it owns
// the rendered fields and leaves those that others add.
//
// spec.queue and scale.idle are only in the Service's annotation, so changing them makes
// no new revision. (For a Service written by hand, Knative's
// scale-to-zero-pod-retention-period is the idle time.) Everything in the template is part
// of a revision, since running replicas were started with it, including Knative's own
// scaling annotations.
//
// # What the shim finds
//
//	argv         runtime; and in the init container: runtime --install PATH, which copies the program to PATH
//	PORT         where it answers: /readyz with 200 after a real token, and the engine's API
//	THAW_MODEL   the model file, as YAML, without scale and queue
//	THAW_SOCKETS the node's folder with the loader's socket, mounted read-only
//	/tmp         the only writable place on a disk, and HOME
//	/dev/shm     memory, for vllm and sglang, and for every engine with several GPUs
//
// It runs as uid 65532 with a read-only root, without capabilities, privilege escalation
// or a Kubernetes token, under RuntimeDefault seccomp. The engine's args and env are in
// THAW_MODEL instead of the container: one document, one decoder. Ember's image is thaw's
// own, so no init container is needed.
//
// The store is one folder for all teams of a node. It is closed to the pods that mount it:
// a pod reaches only the loader's socket, and gets its checkpoint as an open folder over
// that socket (platform/nodeloader).
//
// # What Knative has to allow
//
// Features lists the required settings, and thaw doctor --to knative checks them: init
// containers, host paths and an initial scale of zero are off by default. PodFeatures are
// needed only by files that use them (spec.pod: kubernetes.podspec-nodeselector,
// -tolerations, -runtimeclassname, -priorityclassname; image pull secrets and service
// accounts need none); doctor -f checks them, and deploy refuses with the command that
// turns one on. The security context is on the containers because the pod's needs a
// feature. emptyDir volumes are on by default. A namespace that enforces Pod Security's
// baseline or restricted level forbids host paths: Knative accepts the Service there and
// its pods are refused, so doctor checks the namespace as well.
//
// # spec.pod and security
//
// spec.pod is what GPU nodes require of a pod; agents ignore it. A namespace's annotation
// thaw.dev/pod (team create --pod FILE) is the default for its models with GPUs. deploy
// copies it into the Service, and the file's own value wins. The controller reads the
// revision, so Services written by hand are placed by the same rules.
//
// spec.pod grants nothing that the namespace does not: deploy uses the user's rights, who
// could write the same Service by hand, and thaw creates no pods. A service account gives
// a rendered pod no token (automountServiceAccountToken is false); other effects of an
// account, such as a workload identity, are open to all who may write Services in the
// namespace. The file refuses priorities above the cluster's own components, and the
// policy thaw-pods refuses them in team namespaces. Knative's features hold for the whole
// cluster: with tolerations on, a taint no longer separates teams that may write Services;
// that takes a policy as well.
//
// # Before a deploy
//
// Cluster.Check checks whether a model could run at all: Knative's settings, whether thaw
// is installed, whether a node would hold it if empty, and whether a quota allows it.
// Checks that the account may not make are skipped. --skip-preflight skips all.
//
// # Scaling as Knative scales
//
// The number of replicas is decided by platform/autoscale and placement.Policy.Want
// by the rules of Knative's default autoscaler, KPA: a long and a short window, a target,
// a panic threshold, rates up and down. The tests here compare
// it with KPA itself (knative.dev/serving/pkg/autoscaler/scaling): both get the same random
// loads, with pods that become ready late, and every decision must be equal.
//
// These differences are intended; the first two are in placement.Policy.Want, which is not
// compared.
//
//   - Queued requests start replicas at once. KPA counts them only as a mean over the
//     last seconds.
//   - A panic and the rate down keep replicas that are there. In KPA
//     they also go on starting what a burst asked for that is over; a start costs
//     a GPU for a minute and may evict another model.
//   - The last replica ends after the model's idle time without a request,
//     counted from the end of the last request and from READY. KPA waits for its
//     windows to be empty and then for a grace and a retention period; these are
//     not part of its decision but of the reconciler's, which is not compared.
//   - A load is forgotten when its windows are empty and nothing is desired any
//     more. KPA keeps its window for as long as the revision exists.
//   - Replicas found running by a new orchestrator are kept for a window: as in
//     KPA (autoscale.Load.Adopt).
//   - Not there: requests per second as the metric, activation scale, a delay
//     before scaling down, the exponentially weighted window, excess burst capacity (our activator never
//     leaves the path), revisions without a route (a removed function ends at once).
//
// The settings correspond so:
//
//	Stable       stable-window
//	Panic        panic-window-percentage of it
//	Every        the autoscaler's tick, 2 s
//	Bucket       its bucket, 1 s
//	2            panic-threshold-percentage / 100
//	1            container-concurrency-target-percentage / 100 (KPA: 70, ours: 100)
//	1000         max-scale-up-rate
//	2            max-scale-down-rate
package knative
