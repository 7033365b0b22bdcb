package cli

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// RuntimeConfig is the settings of thaw runtime, from flags and the pod's environment.
type RuntimeConfig struct {
	Install            string // only copy the program there
	Model              string // the model file, as text
	Port               int
	Store              string
	Dir                string
	LoaderWait         time.Duration
	ImportsAhead       bool   // the engine's imports begin with the pod
	Warm               bool   // the engine is forked from the node's interpreter, where there is one
	TerminationMessage string // file for the last words
	LogLevel           string
	LogFormat          string
}

func (c *command) runtime() *cobra.Command {
	var r RuntimeConfig
	cmd := &cobra.Command{
		Use: "runtime", Short: "Serve one model in its pod", GroupID: "run", Args: kit.ExactArgs(),
		Example: `  thaw runtime                                 the model's container: THAW_MODEL, THAW_STORE and PORT say what
  thaw runtime --install /opt/thaw/thaw        an init container, where thaw is not in the engine's image
  PORT=8080 THAW_MODEL="$(cat tiny.yaml)" thaw runtime --store /var/lib/thaw`,
		Long: `The first process of a model's pod: it has the node's loader bring the weights,
starts the engine, and answers on PORT: /readyz with 200 after a real token,
/timeline, /infer and the engine's API. thaw deploy --to knative makes such pods.

THAW_MODEL is the model file, as YAML. THAW_STORE is the loader's folder, with its
socket loader.sock; a model without a source needs none. Only the folder for
temporary files is written to. SIGTERM drains.

Exit codes: 0 drained, 1 the model failed, 2 settings or THAW_MODEL are wrong,
6 the node's loader did not answer. The reason is the last line of the log, and in
/dev/termination-log, where Kubernetes finds it.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.programs.Runtime == nil {
				return c.missing("runtime")
			}
			fs := cmd.Flags()
			if v := c.getenv("PORT"); v != "" && !fs.Changed("port") {
				n, err := strconv.Atoi(v)
				if err != nil {
					return kit.Usage("Knative sets it", "PORT is %q, which is no number", functions.Clip(v))
				}
				r.Port = n
			}
			if r.Port < 0 || r.Port > 65535 {
				return kit.Usage("0 takes a free one", "%d is no port", r.Port)
			}
			if v := c.getenv("THAW_STORE"); v != "" && !fs.Changed("store") {
				r.Store = v
			}
			if v := c.getenv("THAW_IMPORTS_AHEAD"); v != "" && !fs.Changed("imports-ahead") {
				on, err := strconv.ParseBool(v)
				if err != nil {
					return kit.Usage("true or false", "THAW_IMPORTS_AHEAD is %q", functions.Clip(v))
				}
				r.ImportsAhead = on
			}
			if v := c.getenv("THAW_WARM"); v != "" && !fs.Changed("warm") {
				on, err := strconv.ParseBool(v)
				if err != nil {
					return kit.Usage("true or false", "THAW_WARM is %q", functions.Clip(v))
				}
				r.Warm = on
			}
			r.Model = c.getenv("THAW_MODEL")
			return c.programs.Runtime(cmd.Context(), r, c.Out, c.Err)
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.Install, "install", "", "copy the program to this path, and end")
	f.IntVar(&r.Port, "port", 8080, "where to answer [PORT]")
	f.StringVar(&r.Store, "store", "/var/lib/thaw", "folder of the node's loader [THAW_STORE]")
	f.StringVar(&r.Dir, "dir", "", "folder of its own, emptied at the start (default: thaw-PORT in the folder for temporary files)")
	f.DurationVar(&r.LoaderWait, "loader-wait", 2*time.Minute, "how long to wait for a loader that does not answer")
	f.BoolVar(&r.ImportsAhead, "imports-ahead", true, "have vLLM's imports done while the weights come, once for both of its processes [THAW_IMPORTS_AHEAD]")
	f.BoolVar(&r.Warm, "warm", true, "fork vLLM from the warm interpreter of the node, where the node has one (thaw warm-host) [THAW_WARM]")
	f.StringVar(&r.TerminationMessage, "termination-message", "/dev/termination-log", "file for the reason of the end, where it exists")
	f.StringVar(&r.LogLevel, "log-level", "info", "what to log: debug, info, warn, error")
	f.StringVar(&r.LogFormat, "log-format", "text", "how to log: text, json")
	return cmd
}
