// Package control is thaw's controller on Kubernetes: its leader gives nodes, pods and revisions to
// the orchestrator, scales Deployments as that decides, sends activators routes, and serves the
// control API. It adapts the cluster to platform/orchestrator, which decides which models run on
// which nodes and which replicas are evicted, as on one machine and in the simulator:
//
//	function  a Knative revision of class thaw.dev (revisionCatalog, model.go)
//	replica   a pod of it (package clusterstate)
//	node      a Kubernetes node, with the report of its loader (package clusterstate)
//	team      a namespace, with its resource quota and annotations (team.Watcher); the allowed
//	          sources are sent to loaders (podOwners)
//	data path all activators, and requests that bypass them (dataPath, controlstream.Hub)
//	load      one more pod: the scale of the revision's Deployment (kubeWriter)
//	unload    one pod less, after the replica's pod was marked for deletion first
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
// reported or settleWait is over: a snapshot without replicas would queue requests
// that a warm model could serve.
//
// The limits of teams are dealt out by ratelimit.Coordinator (sharedLimits); a new term
// recovers them from the activators. The Secret thaw-control-tls, with token and
// certificates, is read every half minute and renewed by the leader
// (knative.ControlSecrets); so is thaw-admin, with the admin token, but for the renewal.
//
// Nothing is kept on disk. The usage of teams outlives a term in a ConfigMap
// (usageStore), written every half minute and at the end of the term.
//
// It is one idea: a leader's term. Its parts exist for as long as it does, and each calls
// others of them.
package control
