package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// RuntimeConfig is the settings of thaw runtime, from flags and the pod's environment.
type RuntimeConfig struct {
	Model              string             // the model file, as text
	Install            string             `json:"install" help:"copy the program to this path and exit"`
	Port               int                `json:"port" default:"8080" help:"HTTP port; 0 takes a free one" env:"PORT"`
	Sockets            string             `json:"sockets" default:"/var/lib/thaw/sockets" help:"folder of the node with the loader's socket"`
	Dir                string             `json:"dir" help:"folder of its own, emptied at the start" shown:"thaw-PORT in the folder for temporary files"`
	LoaderWait         functions.Duration `json:"loader-wait" default:"2m" help:"how long to wait for a loader that does not answer"`
	ImportsAhead       bool               `json:"imports-ahead" env:"THAW_IMPORTS_AHEAD" default:"true" help:"import vLLM while the weights download, once for both of its processes"`
	Warm               bool               `json:"warm" env:"THAW_WARM" default:"true" help:"fork vLLM from the warm interpreter of the node, where the node has one (thaw warm-host)"`
	Vulnerable         string             `json:"vulnerable-engines" default:"refuse" help:"an engine below the version that fixes a known vulnerability: refuse to start it, or allow" oneof:"refuse,allow"`
	TerminationMessage string             `json:"termination-message" default:"/dev/termination-log" help:"file for the reason of the end, where it exists"`
	kit.LogSettings
}

func (r *RuntimeConfig) check() error {
	if r.Port < 0 || r.Port > 65535 {
		return fmt.Errorf("port: %d is no port; 0 takes a free one", r.Port)
	}
	return nil
}

func (v platformVerbs) runtime() *cobra.Command {
	r := new(RuntimeConfig)
	return settingsVerb(v, &cobra.Command{
		Use: "runtime", Short: "Serve one model in its pod",
		Example: `  thaw runtime                                 the model's container: THAW_MODEL, THAW_SOCKETS and PORT say what
  thaw runtime --install /opt/thaw/thaw        an init container, where thaw is not in the engine's image
  PORT=8080 THAW_MODEL="$(cat tiny.yaml)" thaw runtime --sockets /var/lib/thaw/sockets`,
		Long: `The first process of a model's pod: it has the node's loader bring the weights,
starts the engine, and answers on PORT: /readyz with 200 after a real token,
/timeline, /infer and the engine's API. thaw deploy --to knative makes such pods.

THAW_MODEL is the model file, as YAML. THAW_SOCKETS is the folder of the
node with the loader's socket, loader.sock; a model without a source needs none.
Only the folder for temporary files is written to. SIGTERM drains.

Exit codes: 0 drained, 1 the model failed, 2 settings or THAW_MODEL are wrong,
6 the node's loader did not answer. The reason is the last line of the log, and in
/dev/termination-log, where Kubernetes finds it.`,
	}, r, "", func() error { r.Model = v.programs.Getenv("THAW_MODEL"); return r.check() }, v.programs.Runtime)
}
