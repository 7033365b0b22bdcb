// Package autoscale tells Kubernetes what thaw's controller does with a revision
// of Knative's: it is the reconciler of PodAutoscalers of class thaw.dev. It decides
// nothing and scales nothing. Who decides is platform/orchestrator, who writes a
// Deployment's scale is platform/knative/control; what they say of a revision is a
// Scale, and this room makes of it
//
//	PodAutoscaler      desired and actual scale, and the conditions Active, SKSReady and
//	                   ScaleTargetInitialized. Knative's revision takes its own from them.
//	ServerlessService  made and owned here; what it points to is Knative's to write
//	Events             of the Knative Service: scaled, evicted, blocked, failed
//
// # When a revision is ready
//
// As with Knative's own class (the rules are the table in KPA's computeActiveCondition,
// and the tests hold verdicts to it): once as many replicas were ready as the larger of
// initial and min scale, ScaleTargetInitialized is true, for ever. For both being zero
// that is at once, so a model that is deployed is Ready at zero, with Active False and
// reason NoTraffic. A revision that never came so far and is given up (Active False with
// a reason of its own) is failed by Knative, with that reason. Only annotations count:
// the scales in config-autoscaler, which hold where a revision says nothing, are for
// Knative's own classes.
//
// Broken images, crashes and pods that fit nowhere are found by Knative's revision
// reconciler, which reads the Deployment and its pods while its scale is above zero. It
// needs some seconds after the Deployment's progress deadline: who scales a failed start
// to zero at that very moment takes its reason away.
//
// # The path of a request
//
// thaw's activator goes to pods itself and asks no Service. The ServerlessService is for
// everybody else: mode Proxy puts Knative's activator between, which holds requests
// while there is no pod, Serve leads to pods directly. Proxy is used at zero, and always
// where an ingress of another class leads to the revision, since Knative's activator is
// then the only one who counts its requests; Serve otherwise.
//
// # Demand that we do not carry
//
// Knative's activator tells Knative's autoscaler of requests, and nobody else; a Metric
// of the revision would be seen by that autoscaler alone, which keeps it to itself. So
// no Metric is made. What others may read is the activator's own page of metrics
// (metrics-protocol: prometheus in config-observability; Knative's default is none):
// requests queued and active at this moment, per revision, and how many were answered
// ever, by which those show that come and go between two looks. It is read from each
// activator, four times a second while an ingress of another class leads to a revision
// of ours, else once a second, and not at all while there is no revision of ours. Where
// it cannot be read, the Service of a revision that another ingress leads to is told.
package autoscale
