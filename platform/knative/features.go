package knative

// Feature is a setting of Knative Serving that models need and that is off
// unless the cluster's operator turns it on.
type Feature struct {
	Map   string `json:"configMap"` // in the namespace knative-serving
	Key   string `json:"key"`
	Value string `json:"value"`
	Unset string `json:"unset"` // what holds where the key is not there
	Why   string `json:"why"`
}

// Features are all of them.
var Features = []Feature{
	{"config-features", "kubernetes.podspec-init-containers", "enabled", "disabled", "an init container brings the shim into the engine's image"},
	{"config-features", "kubernetes.podspec-volumes-hostpath", "enabled", "disabled", "the node's store is a folder of the node"},
	{"config-features", "kubernetes.podspec-volumes-emptydir", "enabled", "enabled", "the shim, /tmp and shared memory are volumes of the pod"},
	{"config-autoscaler", "allow-zero-initial-scale", "true", "false", "a deployed model costs nothing until somebody asks"},
}
