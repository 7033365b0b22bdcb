package cli

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

type LoaderConfig struct {
	Store      string             `json:"store" default:"/var/lib/thaw" help:"folder of the node for checkpoints, and for the socket sockets/loader.sock; pods mount sockets read-only"`
	Node       string             `json:"node" help:"name of the node, as Kubernetes has it" shown:"the host's name"`
	Controller string             `json:"controller" help:"HOST:PORT of the controller; all addresses of HOST are tried. None: pods are served and nothing else"`
	TokenFile  string             `json:"token-file" help:"file with the token of the control stream"`
	Certs      string             `json:"certs" help:"folder with ca.crt, tls.crt and tls.key by which the controller and this one know each other; read again when they change. None: the controller is dialled plainly, and no blocks are exchanged"`
	Addr       string             `json:"addr" default:":9091" help:"where to answer /healthz, /readyz and /metrics, or off"`
	PeerAddr   string             `json:"peer-addr" default:"off" help:"where loaders of other nodes borrow blocks of checkpoints: HOST:PORT, or off. They come over TLS and show the certificate of --certs"`
	Advertise  string             `json:"advertise" help:"host under which they reach it, such as the pod's address" shown:"the host of --peer-addr"`
	Peer       []string           `json:"peer" help:"URL of another node that lends blocks, https://HOST:PORT; may be repeated; the controller names all of them"`
	Allow      []string           `json:"allow-source" help:"beginning of sources that pods may have staged, such as az://acct/models; may be repeated. None: all that the credentials here can read"`
	Folder     []string           `json:"folder" help:"folder of the node, such as a share that is mounted there, that pods may have staged from; may be repeated"`
	PodBytes   functions.Bytes    `json:"pod-bytes" default:"0" help:"bytes of checkpoints that one pod may hold; 0 is what the store has"`
	AheadFor   functions.Duration `json:"ahead-for" default:"5m" help:"how long a prefetch is continued and its checkpoint held if no pod uses it"`
	StoreLimits
	AllowLocal bool `json:"allow-local" default:"false" help:"accept processes outside pods; for tests"`
	kit.LogSettings
}

// StoreLimits bound the store of a node's loader; thaw-knative install has them too.
type StoreLimits struct {
	Bytes    functions.Bytes `json:"store-bytes" default:"0" help:"bytes of checkpoints to keep on a node; 0 is all the disk has but 256Mi. Above 95 % of it the least recently used are deleted down to 85 %"`
	KeepFree int             `json:"keep-free" default:"20" help:"percent of the node's disk: while less is free, checkpoints that no pod uses are deleted, before the kubelet evicts pods (at 15 %). 0 for a disk of the store's own"`
}

func (l *StoreLimits) Check() error {
	if l.KeepFree < 0 || l.KeepFree > 95 {
		return fmt.Errorf("keep-free: %d is no percentage of a disk: 0 to 95", l.KeepFree)
	}
	return nil
}

// maxSocketDir is the longest path of a folder that has the loader's socket in it:
// the kernel takes 107 bytes for the whole of it.
const maxSocketDir = 107 - len("/sockets/loader.sock~")

func (c *LoaderConfig) check() error {
	if c.Store == "" {
		return errors.New("store: the folder for checkpoints is needed: --store /var/lib/thaw")
	}
	if c.Controller != "" {
		if host, _, err := net.SplitHostPort(c.Controller); err != nil || host == "" {
			return fmt.Errorf("controller: %q is no address: want HOST:PORT, such as thaw-controller.thaw-system:8090", functions.Clip(c.Controller))
		}
	}
	if c.TokenFile == "" && c.Controller != "" {
		return errors.New("token-file: a file with the token of the control stream is needed: --token-file F")
	}
	if c.Certs == "" && (c.PeerAddr != "off" || len(c.Peer) > 0) {
		return errors.New("certs: loaders exchange blocks over TLS only: --certs DIR, with ca.crt, tls.crt and tls.key of the Secret " +
			"thaw-control-tls")
	}
	if err := cmp.Or(c.StoreLimits.Check(), checkAddress("addr", c.Addr), checkAddress("peer-addr", c.PeerAddr)); err != nil {
		return err
	}
	if c.AheadFor <= 0 {
		return errors.New("ahead-for must be more than 0")
	}
	for _, f := range c.Folder {
		if !filepath.IsAbs(f) {
			return fmt.Errorf("folder: %q is no absolute path", functions.Clip(f))
		}
	}
	for _, a := range c.Allow {
		if scheme, _, ok := strings.Cut(a, "://"); !ok || scheme == "file" {
			return fmt.Errorf("allow-source: %q is no beginning of a source such as az://acct/models; folders are named with --folder",
				functions.Clip(a))
		}
	}
	if err := defaultHostname(&c.Node); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if err := kit.MakeAbsolute(&c.Store, &c.TokenFile, &c.Certs); err != nil {
		return err
	}
	return checkSocketDir("store", c.Store)
}

// checkAddress validates a HOST:PORT or off.
func checkAddress(name, address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil && address != "off" {
		return fmt.Errorf("%s: %q is no address: want HOST:PORT, or off", name, functions.Clip(address))
	}
	return nil
}

// checkSocketDir refuses a folder in which the path of a socket would be too long.
func checkSocketDir(name, dir string) error {
	if len(dir) > maxSocketDir {
		return fmt.Errorf("%s: the path is %d bytes long; with a socket in it it may have %d", name, len(dir), maxSocketDir)
	}
	return nil
}

func (v platformVerbs) loader() *cobra.Command {
	cfg := new(LoaderConfig)
	return settingsVerb(v, &cobra.Command{
		Use: "loader", Short: "Load models for the pods of a node",
		Example: `  thaw loader --controller thaw-controller.thaw-system:8090 --token-file /etc/thaw/token \
      --node "$NODE" --peer-addr :8091 --advertise "$POD_IP"      as the DaemonSet has it
  thaw loader --store /mnt/nvme/thaw --keep-free 0 --store-bytes 800Gi --allow-source az://acct/models
  thaw loader --store /tmp/thaw --allow-local --addr off          on a desk, without a cluster
  thaw cache ls --data /var/lib/thaw                              what the node has`,
		Long: `The loader of a node in a cluster: it brings checkpoints into the node's store for
the pods there, once for all of them, and tells the controller what the node has
and how its pods are.

Pods dial the socket sockets/loader.sock in the store's folder; which pod it is the kernel
says, so it has to see the host's processes (hostPID). They get what was staged for
them over it, open; to all other users the store is closed. Credentials of sources come
from its own environment, as for every thaw: workload identity, AZURE_, AWS_,
GOOGLE_ and HF_ variables. It has no access to Kubernetes.

Without a controller pods are served all the same. SIGTERM ends it within seconds:
what was under way is taken up by the next, and pods that have their weights go on.`,
	}, cfg, "THAW_LOADER_CONFIG", cfg.check, v.programs.Loader)
}
