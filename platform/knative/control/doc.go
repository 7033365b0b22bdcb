// Package control is the controller of thaw on Kubernetes: who decides which models
// run there, on which nodes, and who makes room for whom.
//
// It decides nothing itself. platform/orchestrator and platform/placement do, the same as on
// one machine and in the simulator; here the cluster is said in their words.
//
//	function  a revision of Knative's of class thaw.dev (books, model.go)
//	replica   a pod of it (fleet, pods.go)
//	node      a node of Kubernetes; what its loader says of stores is added (fleet)
//	team      a namespace, with its ResourceQuota and annotations (teams); what it may have
//	          staged, its nodes' loaders are told (owners)
//	data path all activators together, and whoever asks past them (path, link.Hub)
//	load      one more pod: the scale of the revision's Deployment (hands)
//	unload    one pod less, and this one: it is made the first to go
//
// # Pods and replicas
//
// Steer counts replicas that it has named, a Deployment pods that nobody has. A
// replica that is wanted is one more pod, and the first pod of its revision that
// comes and is nobody's is bound to it. Where it was wanted is a hint to the
// scheduler (platform/knative/schedulerhint); where it comes to be elsewhere, what was wanted
// has vanished and what is found is adopted. A pod that was there before this
// controller, or that replaces one somebody evicted, is a replica by its own name.
// Every wait of that kind is bounded: found, replacement, unschedulable.
//
// A pod is READY when its shim says so, by way of the loader of its node, which knows
// whose words they are. Kubernetes would tell seconds later. With Options.EarlyDispatch
// activators know its door from its first word on (snapshot.Snapshot.NotReadyEndpoints), and the first
// of the line wait there for READY. A pod without the shim (a Service written by hand) is asked until it
// answers, as Knative's own activator does it. Where no loader tells of a shim,
// Kubernetes' word is taken.
//
// What Kubernetes knows and nobody else is a reason of failure: images that cannot be
// pulled, containers that end, nodes that do not fit, quotas that refuse.
//
// # The end of a pod
//
// A replica that is to end has left the routes and has nothing in flight. Its shim is
// told, the Deployment is made smaller, and once the shim has said that the engine has
// ended the pod is taken out of Kubernetes' books: Knative's proxy in it would wait
// half a minute for requests, the kubelet does not shorten an end that has begun
// (it ignores the shorter grace: SyncTerminatingPod), and so long its GPUs would be
// nobody's. Pods without the shim end at Knative's pace. A Deployment grows again only
// once such pods have begun to end (outgoing): one that is made smaller and larger in
// a moment keeps the pod it had, which has no engine any more.
//
// # What a node shows
//
// Which models' bytes a node has, and whether in memory or on its disk, stands on it
// as the annotation thaw.dev/cached-models (near). It is for people and for others that place
// pods; thaw goes by what loaders say, as thaw get nodes shows. It is written on
// change, and the account of the controller may change nothing else of a node: a
// ValidatingAdmissionPolicy of the installation says so, since RBAC cannot.
//
// # Who leads
//
// One controller leads, by a Lease; what there is only while it does is a reign. The
// number of the reign is steer's epoch. It stands at each Deployment that was scaled,
// and a scale is written on the condition that it has not become a newer one; who has
// not renewed the lease lately, by a clock that runs on while the process is stopped,
// writes nothing at all.
//
// A reign begins by listening. What runs is adopted: pods as they are, the size of a
// Deployment as somebody left it. Activators are told nothing (link.HubOptions.Quiet)
// until every pod has been heard of, or settle's bound is over, since a picture
// without replicas would hold requests that a warm model could serve.
//
// What is left of a team's requests, tokens and cold starts is the bank's (shares), and
// the next reign has it from the activators. The Secret thaw-control-tls, token and
// certificates, is read every half minute, and renewed by the one that leads (links).
//
// Nothing is kept on a disk. What teams have used outlives a reign in a ConfigMap
// (accounts), written every half minute and at its end, by the newest reign alone.
package control
