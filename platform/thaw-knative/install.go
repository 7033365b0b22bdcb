package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/install"
)

func installVerb() verb {
	return verb{"install", "Install thaw on a cluster, or uninstall it", `  thaw-knative install --image example.com/thaw:1 --wait --timeout 3m
  thaw-knative install --dry-run -o yaml | kubectl apply --server-side -f -
  thaw-knative install --loaders all           loaders on all nodes, not on those with GPUs alone
  thaw-knative install --warm-image vllm/vllm-openai:v0.32.0   each node forks engines for its pods: warm starts
  thaw-knative install --cluster-domain k8s.example.com --eviction gdsf --hold pad   how the parts run; without them as their --help says
  thaw-knative install --uninstall             refused while there are models`, installFlags, (*command).install, kit.ExactArgs()}
}

// installSettings are the flags of install alone.
type installSettings struct {
	install.Options
	controller       sharedController
	activator        sharedActivator
	loader           cli.StoreLimits
	loaders          string
	uninstall, force bool
}

func installFlags(c *command, f *kit.FlagSet) {
	i := &c.installation
	f.StringVar(&i.Image, "image", c.getenv("THAW_IMAGE"), "image with thaw and thaw-knative; deploy/images builds it [THAW_IMAGE]")
	f.IntVar(&i.Controllers, "controllers", 0, "number of controllers, of which one leads (default 2)")
	f.IntVar(&i.Activators, "activators", 0, "number of activators (default 2)")
	f.StringVar(&i.loaders, "loaders", "", "nodes with a loader: LABEL=VALUE, or all (default nvidia.com/gpu.present=true)")
	f.StringVar(&i.Store, "store", "", "folder of the loader on each node (default "+knative.DefaultStore+")")
	f.StringVar(&i.Sources, "source-secret", "",
		"Secret in "+install.Namespace+" whose keys loaders have as variables, and as files in "+knative.SourceFolder+
			": credentials of sources; used where it exists (default "+knative.SourceSecret+")")
	f.StringVar(&i.Warm, "warm-image", "",
		"image of the engine whose warm interpreter each node forks for its pods; it runs as root on the node (default off)")
	f.BoolVar(&i.Expose, "expose", false, "type LoadBalancer for the Service thaw")
	f.StringVar(&i.History, "history-claim", "",
		"PersistentVolumeClaim in "+install.Namespace+", which all controllers can mount, to keep history in (default: in memory)")
	kit.RegisterFlags(f, &i.controller)
	kit.RegisterFlags(f, &i.activator)
	kit.RegisterFlags(f, &i.loader)
	f.BoolVar(&c.dry, "dry-run", false, dryRunHelp)
	f.BoolVar(&c.wait, "wait", false, "until all of it runs, within --timeout")
	f.BoolVar(&i.uninstall, "uninstall", false, "uninstall; weights stay on the nodes' disks")
	f.BoolVar(&i.force, "force", false, "with --uninstall: also while there are models")
}

// loadSettings loads the settings of the parts. Those that are given become arguments
// of the parts' containers.
func (i *installSettings) loadSettings(f *kit.FlagSet, getenv func(string) string) error {
	for _, part := range []struct {
		settings any
		check    func() error
		args     *[]string
	}{
		{&i.controller, i.controller.check, &i.Controller},
		{&i.activator, i.activator.Check, &i.Activator},
		{&i.loader, i.loader.Check, &i.Loader},
	} {
		origin, err := kit.LoadSettings(f, part.settings, "", getenv)
		if err == nil {
			err = part.check()
		}
		if err != nil {
			return &kit.Error{Exit: kit.ExitUsage, What: "settings", Err: err}
		}
		for _, s := range kit.Settings(part.settings) {
			if origin[s.Name] != "default" {
				*part.args = append(*part.args, "--"+s.Name+"="+s.Text())
			}
		}
	}
	return nil
}

func (c *command) install(ctx context.Context, _ []string) error {
	i := &c.installation
	switch {
	case i.uninstall && (c.wait || c.dry):
		return kit.Usage("leave one out", "--uninstall goes with neither --wait nor --dry-run")
	case i.force && !i.uninstall:
		return kit.Usage("leave it out", "--force is for --uninstall")
	case c.wait && c.dry:
		return kit.Usage("leave one out", "nothing runs after --dry-run, so --wait cannot end")
	case c.namespace != "" && c.namespace != install.Namespace:
		return kit.Usage("leave it out", "thaw's own namespace is %s", install.Namespace)
	case i.Controllers < 0 || i.Activators < 0:
		return kit.Usage("such as 2", "there cannot be less than none of them")
	}
	switch label, value, ok := strings.Cut(i.loaders, "="); {
	case i.loaders == "all":
		i.Loaders = map[string]string{}
	case ok && label != "":
		i.Loaders = map[string]string{label: value}
	case i.loaders != "":
		return kit.Usage("LABEL=VALUE, or all", "%q names no nodes", kit.Plain(i.loaders))
	}
	if err := i.loadSettings(c.flags, c.getenv); err != nil {
		return err
	}
	if i.uninstall {
		i.Image = anyImage
	}
	objects, err := install.Objects(i.Options)
	if err != nil {
		e := &kit.Error{Exit: kit.ExitUsage, Err: err}
		if errors.Is(err, install.ErrNoImage) {
			e.Hint = "--image IMAGE, or set THAW_IMAGE; deploy/images builds it"
		}
		return e
	}
	if c.dry && c.isDocument() {
		return printObjects(c, objects)
	}
	return c.apply(ctx, objects, i.Warm == "")
}

// printObjects prints objects as kubectl apply takes them.
func printObjects[T any](c *command, objects []T) error {
	b, err := knative.FormatObjects(c.Output, objects...)
	if err != nil {
		return err
	}
	_, err = c.Out.Write(b)
	return err
}

// apply creates or changes objects, or with --uninstall deletes them, and prints each.
// removeWarm also removes the warm hosts of an earlier installation.
func (c *command) apply(ctx context.Context, objects []*install.Object, removeWarm bool) error {
	models, err := knative.Open(c.access)
	if err != nil {
		return err
	}
	cluster, err := install.Open(models)
	if err != nil {
		return err
	}
	done := outcomes{command: c}
	remove := func(name string) { done.add(name, removed) }
	if c.installation.uninstall {
		err = cluster.Remove(ctx, objects, c.installation.force, remove)
	} else {
		err = cluster.Apply(ctx, objects, c.dry, done.add)
		if err == nil && removeWarm {
			err = cluster.RemoveWarmHosts(ctx, c.dry, remove)
		}
		if err == nil && c.wait {
			err = cluster.Wait(ctx, objects)
		}
	}
	return errors.Join(done.print("InstalledList"), err)
}

func tokenVerb() verb {
	return verb{"control-token --file FILE",
		"In the controller's pod: the token of the Secret thaw-control-tls as a file; makes that Secret and thaw-admin where there are none",
		"  thaw-knative control-token --file /run/thaw/token", func(c *command, f *kit.FlagSet) {
			f.StringVar(&c.file, "file", "", "where the token goes")
		}, (*command).writeControlToken, nil}
}

// writeControlToken is what the controller's init container runs.
func (c *command) writeControlToken(ctx context.Context, args []string) error {
	if c.file == "" || len(args) > 0 {
		return kit.Usage("thaw-knative control-token --file /run/thaw/token", "--file FILE is all it takes")
	}
	cluster, err := knative.Open(c.access)
	if err != nil {
		return err
	}
	token, err := install.Token(ctx, cluster.Secrets(cmp.Or(c.namespace, c.getenv("POD_NAMESPACE"), install.Namespace)))
	if err != nil {
		return err
	}
	return install.WriteToken(c.file, token)
}

// chownStore is what the loader's init container runs, as root with CAP_CHOWN alone.
func (c *command) chownStore(_ context.Context, args []string) error {
	if len(args) != 2 {
		return kit.Usage("thaw-knative chown-store "+knative.DefaultStore+" 65532", "a folder and an id are what it takes")
	}
	id, err := strconv.Atoi(args[1])
	if err != nil || id < 1 || id > 1<<31-2 {
		return kit.Usage("such as 65532", "%q is no id", kit.Plain(args[1]))
	}
	if err := install.ChownStore(args[0], id); err != nil {
		exit := kit.ExitFailed
		if os.IsNotExist(err) {
			exit = kit.ExitNotFound
		}
		return &kit.Error{Exit: exit, Err: err}
	}
	return nil
}
