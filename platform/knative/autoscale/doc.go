// Package autoscale writes the scale that thaw's controller has decided into the status of
// Knative's PodAutoscalers of class thaw.dev, their ServerlessServices and Events of Services, and
// reports to it the requests that Knative's activators count; it decides no scale and scales no
// Deployment. The decisions are platform/orchestrator's, and platform/knative/control writes the scale
// of Deployments. From the controller's Scale of a revision this package makes
//
//	PodAutoscaler      desired and actual scale, and the conditions Active, SKSReady and
//	                   ScaleTargetInitialized, which Knative's revision copies
//	ServerlessService  created and owned here; Knative fills in its endpoints
//	Events             of the Knative Service: scaled, evicted, blocked, failed
//
// # When a revision is ready
//
// As with Knative's own class (the table in KPA's computeActiveCondition, with which the
// tests compare): once the larger of initial and min scale was ready at one time,
// ScaleTargetInitialized stays true. If both are zero, that is at once, so a deployed model
// is Ready at zero, with Active False and reason NoTraffic. A revision that never came so
// far and has failed (Active False with its own reason) is failed by Knative with that
// reason. Only annotations count: the scales in config-autoscaler are for Knative's own
// classes.
//
// Broken images, crashes and pods that fit nowhere are found by Knative's revision
// reconciler, which reads the Deployment and its pods while its scale is above zero. It
// needs some seconds after the Deployment's progress deadline: scaling a failed start to
// zero at that moment loses its reason.
//
// # The path of a request
//
// thaw's activator sends requests to pods directly. The ServerlessService is for all other
// clients: in mode Proxy Knative's activator is in the path and holds requests while there
// is no pod, in mode Serve requests go to pods. Proxy is used at zero, and always if an
// Ingress of another class routes to the revision, since only Knative's activator counts
// those requests; Serve otherwise.
//
// # Demand that bypasses thaw's activators
//
// Knative's activator reports requests only to Knative's autoscaler, which does not share
// them, so no Metric is created. Instead the activator's metrics are read
// (metrics-protocol: prometheus in config-observability; Knative's default is none): the
// requests queued and active now, and the total of answered ones, which reveals requests
// that came and went between two polls. Each activator is polled four times a second while
// an Ingress of another class routes to a revision of class thaw.dev, else once a second,
// and not at all without such a revision. Where the metrics cannot be read, the Service of
// a revision behind another Ingress gets an Event.
package autoscale
