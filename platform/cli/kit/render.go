package kit

import (
	"cmp"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// RenderFlags are the settings of a cluster that model files do not have.
type RenderFlags struct {
	Image      string   // of thaw
	Images     []string // ENGINE=IMAGE
	Store      string
	Vulnerable string // refuse or allow
	GPUMemory  functions.Bytes
	Request    time.Duration
	Pod        string // a file
}

// Register registers the flags of verbs that render models for a cluster.
func (r *RenderFlags) Register(f *FlagSet, getenv func(string) string, request time.Duration) {
	f.StringVar(&r.Image, "thaw-image", getenv("THAW_IMAGE"),
		"image whose entry point is thaw; left out: that of the cluster's controller [THAW_IMAGE]")
	f.StringArrayVar(&r.Images, "image", nil, "ENGINE=IMAGE to run an engine from; may be repeated")
	f.StringVar(&r.Store, "store", "", "folder of the loader on each node; left out: that of the cluster's loaders")
	f.StringVar(&r.Vulnerable, "vulnerable-engines", cmp.Or(getenv("THAW_VULNERABLE_ENGINES"), "refuse"),
		"engines below the version that fixes a known vulnerability: pods refuse to start them, or allow [THAW_VULNERABLE_ENGINES]")
	f.TextVar(&r.GPUMemory, "gpu-memory", functions.Bytes(0),
		"memory of one GPU, for models whose file leaves its resources out; left out: what the labels of the cluster's nodes say")
	f.DurationVar(&r.Request, "request-timeout", request, "the longest a request may take")
	f.StringVar(&r.Pod, "pod", "", "file with what pods of models with GPUs say where spec.pod does not (nodeSelector, tolerations, …); "+
		"else the annotation thaw.dev/pod of the namespace, where a cluster is asked")
}
