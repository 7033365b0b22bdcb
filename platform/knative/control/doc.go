// Package control is thaw's controller on Kubernetes: it presents pods, nodes and revisions
// to platform/orchestrator, and carries out its decisions by scaling Deployments. It adapts
// the cluster to platform/orchestrator, which decides which models run on which nodes and
// which replicas are evicted, as on one machine and in the simulator:
//
//	function  a Knative revision of class thaw.dev (revisionCatalog, model.go)
//	replica   a pod of it (clusterState, pods.go, replicastatus.go)
//	node      a Kubernetes node, with the report of its loader (nodes.go)
//	team      a namespace, with its ResourceQuota and annotations (team.Watcher); the allowed
//	          sources are sent to loaders (podOwners)
//	data path all activators, and requests that bypass them (dataPath, controlstream.Hub)
//	load      one more pod: the scale of the revision's Deployment (kubeWriter)
//	unload    one pod less, after the replica's pod was marked for deletion first
//
// # Pods and replicas
//
// The orchestrator names replicas, a Deployment only counts pods. A new replica is one
// more pod, and the first unbound pod of its revision is bound to it. The chosen node is
// a hint to the scheduler (platform/knative/schedulerhint); if the pod is scheduled
// elsewhere, the planned replica vanishes and the pod is adopted as another one. A pod
// that existed before this controller, or that replaces an evicted one, is a replica
// named after the pod. Each of these waits is bounded: adoptDelay, replacementWait,
// unschedulable.
//
// A pod is READY when its shim reports so through the loader of its node, seconds before
// Kubernetes' condition. With Options.EarlyDispatch activators know the shim's address
// from its first report on (snapshot.Snapshot.EarlyReplicas), and the first queued
// requests wait there. A pod without the shim (a Service written by hand) is probed, as
// Knative's activator does it. Where no loader reports a shim, Kubernetes' condition
// counts.
//
// Reasons of failure that only Kubernetes knows: images that cannot be pulled,
// containers that exit, pods that fit no node, quotas.
//
// # The end of a pod
//
// A replica that ends has left the routes and has no request in flight. Its shim is
// told to stop, the Deployment is scaled down, and once the shim reports that the engine
// has exited the pod is deleted with grace period 0. Without that, Knative's proxy in it
// would wait half a minute and hold the pod's GPUs; the kubelet ignores a shorter grace
// period for a pod that is already terminating (SyncTerminatingPod). Pods without the
// shim end at Knative's pace. A Deployment grows again only once such pods are
// terminating (holdForTermination): one that shrinks and grows at once keeps the pod
// whose engine has exited.
//
// # Annotation of nodes
//
// cacheAnnotator writes on each node which models it has in memory or on disk, as
// thaw.dev/cached-models, for people and other schedulers; thaw uses the loaders'
// reports. A ValidatingAdmissionPolicy of the installation, thaw-nodes, forbids the
// controller any other change of a node, which RBAC cannot express.
//
// # Leader election
//
// One controller leads (platform/knative/election); leaderTerm is what exists while it does. The term's
// number is the orchestrator's epoch. It is written on each scaled Deployment, and a
// scale is written only if no newer epoch is there. A controller that has not renewed
// the lease lately, by the monotonic clock, writes nothing.
//
// A term begins by collecting reports. Existing pods and Deployment sizes are adopted.
// Activators are sent nothing (controlstream.HubOptions.Quiet) until every pod has been
// reported or Options.Settle is over: a snapshot without replicas would queue requests
// that a warm model could serve.
//
// The limits of teams are dealt out by ratelimit.Coordinator (sharedLimits); a new term
// recovers them from the activators. The Secret thaw-control-tls, with token and
// certificates, is read every half minute and renewed by the leader (knative.ControlSecrets); so is thaw-admin, with the admin token, but for the renewal.
//
// Nothing is kept on disk. The usage of teams outlives a term in a ConfigMap
// (usageStore), written every half minute and at the end of the term.
//
// It is one idea: the translation between the cluster and the orchestrator. Its files
// share one state of pods, nodes and revisions under one lock.
package control
