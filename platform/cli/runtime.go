package cli

import (
	"cmp"
	"errors"
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

type WarmHostConfig struct {
	Sockets    string `json:"sockets" default:"/var/lib/thaw/sockets" help:"folder of the node that pods mount read-only; the socket is warm/s below it"`
	Engine     string `json:"engine" default:"vllm" help:"what is imported" oneof:"vllm"`
	Dir        string `json:"dir" help:"folder of its own" shown:"thaw-warm-host in the folder for temporary files"`
	Addr       string `json:"addr" default:":9092" help:"where to answer /healthz and /readyz, or off"`
	AllowLocal bool   `json:"allow-local" default:"false" help:"accept processes outside pods; for tests"`
	kit.LogSettings
}

func (c *WarmHostConfig) check() error {
	if c.Sockets == "" {
		return errors.New("sockets: the folder of the node's sockets is needed: --sockets /var/lib/thaw/sockets")
	}
	if err := cmp.Or(checkAddress("addr", c.Addr), kit.MakeAbsolute(&c.Sockets, &c.Dir)); err != nil {
		return err
	}
	return checkSocketDir("sockets", c.Sockets)
}

func (v platformVerbs) warmHost() *cobra.Command {
	cfg := new(WarmHostConfig)
	return settingsVerb(v, &cobra.Command{
		Use: "warm-host", Short: "Fork engines of a node's pods from one warm interpreter",
		Example: `  thaw warm-host                                    in the engine's own image, as the DaemonSet thaw-warm has it
  thaw warm-host --sockets /mnt/nvme/thaw/sockets
  thaw-knative install --warm-image IMAGE      puts it on the nodes that have a loader`,
		Long: `The interpreter of a node: it imports what vLLM imports, once, and forks engines into
the pods that ask, on the socket warm/s in the node's folder of sockets. A pod's engine then
starts without the seconds of imports. Off unless it is installed.

A child is confined as the process that asked is, before a byte of what that one
says is read, and is looked at from outside before it may go on. Pods that are not
confined as thaw renders them, that run another image, or that ask too often are
refused, and start their engine themselves; their timeline says why.

It takes root on the node: hostPID, SYS_ADMIN and seven more capabilities, no seccomp
filter, and an image whose interpreter is root's alone to write. All pods of a node
share the layout of memory and the hash seed of their engines: runtime/forkserver/pods.md
says what that is worth.`,
	}, cfg, "", cfg.check, v.programs.WarmHost)
}
