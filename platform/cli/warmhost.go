package cli

import (
	"cmp"
	"errors"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

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
