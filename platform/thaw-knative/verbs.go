package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/files"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/knative"
)

// command is one run of the program.
type command struct {
	*kit.Terminal
	getenv func(string) string
	flags  *kit.FlagSet // of the verb

	access    knative.Access
	namespace string
	timeout   time.Duration
	all       bool
	files     []string
	file      string
	dry, wait bool
	unchecked bool
	render    kit.RenderFlags

	installation  installSettings
	newTeam       teamSettings
	team, keyName string // of the verb keys
}

type verb struct {
	use, short, examples string
	flags                func(*command, *kit.FlagSet)
	run                  func(*command, context.Context, []string) error
	args                 kit.Args // nil: any
}

func verbs() []verb {
	return []verb{
		{"deploy -f FILE|DIR", "Render models as Knative Services and apply them", `  thaw-knative deploy -f model.yaml
  thaw-knative deploy -f model.yaml --dry-run            let the cluster check it, change nothing
  thaw-knative deploy -f model.yaml --dry-run -o yaml --thaw-image IMAGE   print it, without a cluster; kubectl apply takes it
  thaw-knative deploy -f model.yaml --pod gpu-nodes.yaml tolerations and the like of this cluster's GPU nodes
  thaw-knative deploy -f model.yaml --wait               until it can be asked for, or why not`, deployFlags, (*command).deploy, nil},
		{"get [NAME...]", "List the models of a cluster", `  thaw-knative get
  thaw-knative get -A -o json`, func(c *command, f *kit.FlagSet) {
			f.BoolVarP(&c.all, "all-namespaces", "A", false, "of all namespaces")
		}, (*command).get, nil},
		{"rm NAME...", "Remove models from a cluster", "  thaw-knative rm llama team-b/qwen", nil, (*command).rm, kit.UpToArgs("NAME", 0)},
		{"doctor [-f FILE|DIR]", "Check what models need on a cluster", `  thaw-knative doctor
  thaw-knative doctor -f model.yaml      and what that model needs: settings, nodes, quotas, classes`, doctorFlags, (*command).doctor, kit.ExactArgs()},
		installVerb(),
		keysVerb(),
		tokenVerb(),
		teamVerb(),
		{"chown-store FOLDER ID", "In the loader's pod: change the owner of the node's folder to the loader's user",
			"  thaw-knative chown-store " + knative.DefaultStore + " 65532", nil, (*command).chownStore, nil},
		{"version", "Print the version", "  thaw-knative version", nil, (*command).version, nil},
	}
}

const dryRunHelp = "change nothing; with -o yaml or json, print what would be applied, without a cluster"

func deployFlags(c *command, f *kit.FlagSet) {
	f.StringArrayVarP(&c.files, "filename", "f", nil, "file or folder of model files; may be repeated")
	f.BoolVar(&c.dry, "dry-run", false, dryRunHelp)
	f.BoolVar(&c.wait, "wait", false, "until the models can be asked for, within --timeout")
	f.BoolVar(&c.unchecked, "skip-preflight", false, "apply without checking whether the cluster can run them")
	c.render.Register(f, c.getenv, knative.DefaultTimeout)
}

func doctorFlags(c *command, f *kit.FlagSet) {
	f.StringArrayVarP(&c.files, "filename", "f", nil, "file or folder of model files: what these need as well; may be repeated")
	c.render.Register(f, c.getenv, knative.DefaultTimeout)
}

func (c *command) execute(ctx context.Context, args []string) error {
	if len(args) > 0 && isControllerVerb(args[0], args[1:]) {
		return c.ask(ctx, args)
	}
	root := c.root()
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	return kit.Execute(ctx, root, args)
}

func (c *command) root() *kit.Command {
	root := kit.NewRoot("thaw-knative", "Models as Knative Services on Kubernetes",
		[2]string{"cluster", "Verbs of a cluster:"},
		[2]string{"controller", "Asked of the controller, with the flags that thaw has for a server:"},
		[2]string{"part", "Parts of a cluster, which install starts there:"})
	for _, v := range verbs() {
		root.AddCommand(c.clusterVerb(v))
	}
	for word, short := range controllerVerbs {
		cmd := &kit.Command{Use: word, Short: short, GroupID: "controller", RunE: func(*kit.Command, []string) error { return nil }}
		cmd.SetHelpFunc(func(cmd *kit.Command, _ []string) { _ = c.ask(cmd.Context(), []string{word, "--help"}) })
		root.AddCommand(cmd)
	}
	root.AddCommand(c.controllerPart(), c.activatorPart())
	return root
}

// clusterVerb makes the command of v, with the flags that every verb on a cluster has.
func (c *command) clusterVerb(v verb) *kit.Command {
	cmd := &kit.Command{Use: v.use, Short: v.short, Example: v.examples, GroupID: "cluster", Args: v.args}
	if v.args == nil {
		cmd.Args = kit.UpToArgs("", 0)
	}
	f := cmd.Flags()
	f.StringVar(&c.access.Kubeconfig, "kubeconfig", "", "kubeconfig file of the cluster [KUBECONFIG]")
	f.StringVar(&c.access.Context, "context", "", "context of that file")
	f.StringVarP(&c.namespace, "namespace", "n", "",
		"namespace, which is the team (default: the file's, else that of the kubeconfig's context)")
	f.StringVarP(&c.Output, "output", "o", "table", "form of output: table, json, yaml, name")
	f.DurationVar(&c.timeout, "timeout", time.Minute, "longest time the verb may take")
	if v.flags != nil {
		v.flags(c, f)
	}
	cmd.RunE = func(cmd *kit.Command, args []string) error {
		if !slices.Contains([]string{"table", "json", "yaml", "name"}, c.Output) {
			return kit.Usage("one of table, json, yaml, name", "%q is no form of output", c.Output)
		}
		if c.timeout <= 0 {
			return kit.Usage("such as 1m", "%s is no time to wait", c.timeout)
		}
		c.flags = cmd.Flags()
		c.access.Warn = func(text string) { fmt.Fprintln(c.Err, "warning:", kit.Plain(text)) }
		ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
		defer cancel()
		return v.run(c, ctx, args)
	}
	return cmd
}

// settings returns the flags that apply to every model. The image of thaw is anyImage
// where it is not set, until the cluster is asked for it.
func (c *command) settings() (s knative.Settings, err error) {
	s = knative.Settings{Thaw: cmp.Or(c.render.Image, anyImage), Namespace: c.namespace, Store: c.render.Store, Timeout: c.render.Request,
		Images: map[functions.Engine]string{}, AllowVulnerable: c.render.Vulnerable == "allow"}
	if c.render.Vulnerable != "allow" && c.render.Vulnerable != "refuse" {
		return s, kit.Usage("refuse or allow", "--vulnerable-engines: %q is not one of refuse, allow", kit.Plain(c.render.Vulnerable))
	}
	for _, word := range c.render.Images {
		engine, image, ok := strings.Cut(word, "=")
		if !ok || image == "" || !slices.Contains(functions.Engines, functions.Engine(engine)) {
			return s, kit.Usage(fmt.Sprintf("such as vllm=%s; engines: %v", knative.DefaultImage(functions.EngineVLLM), functions.Engines),
				"--image %q does not name an engine and its image", word)
		}
		s.Images[functions.Engine(engine)] = image
	}
	if c.render.Pod != "" {
		if s.Pod, err = c.readPod(); err != nil {
			return s, err
		}
	}
	return s, nil
}

// anyImage stands for an image that is not known yet.
const anyImage = "thaw"

// readModels reads the model files with what applies to all, and checks them before a
// cluster is looked for.
func (c *command) readModels(ctx context.Context) (settings knative.Settings, models []*functions.Model, err error) {
	if settings, err = c.settings(); err != nil || len(c.files) == 0 {
		return settings, nil, err
	}
	namespace := ""
	if c.namespace == "" {
		namespace = knative.ContextNamespace(c.access)
	}
	if models, err = files.ReadModels(c.In, c.files, namespace, teamHint); err == nil {
		_, err = c.rendered(ctx, settings, models, nil)
	}
	return settings, models, err
}

// fillInstalled sets the image and the store that are not set to those of the cluster.
func (c *command) fillInstalled(ctx context.Context, s *knative.Settings) error {
	if s.Thaw = c.render.Image; s.Thaw != "" {
		return nil
	}
	cluster, err := knative.Open(c.access)
	if err != nil {
		return kit.Usage(knative.ImageHint, "the image of thaw is not known: %v", err)
	}
	if s.Thaw, err = cluster.InstalledImage(ctx); err == nil {
		s.Store, err = cluster.InstalledStore(ctx, s.Store)
	}
	return err
}

func (c *command) readPod() (functions.Pod, error) {
	text, err := os.ReadFile(c.render.Pod)
	if errors.Is(err, fs.ErrNotExist) {
		return functions.Pod{}, &kit.Error{Exit: kit.ExitNotFound, Err: fmt.Errorf("--pod: %w", err)}
	} else if err != nil {
		return functions.Pod{}, fmt.Errorf("--pod: %w", err)
	}
	pod, err := knative.ReadPod(c.render.Pod, text)
	if err != nil {
		return pod, &kit.Error{Exit: kit.ExitUsage, Err: err, Hint: "what stands under spec.pod of a model file, by itself"}
	}
	return pod, nil
}

// rendered returns models as Knative Services. With a cluster, annotations of its
// namespaces add defaults for pods.
func (c *command) rendered(ctx context.Context, settings knative.Settings, models []*functions.Model,
	cluster *knative.Cluster) ([]*knative.Service, error) {
	services, err := knative.RenderAll(models, settings)
	if err != nil || cluster == nil || c.render.Pod != "" {
		return services, err
	}
	defaults := map[string]functions.Pod{}
	for i, m := range models {
		if m.Spec.Resources.GPUs == 0 {
			continue
		}
		namespace := services[i].Namespace
		pod, asked := defaults[namespace]
		if !asked {
			if pod, err = cluster.PodDefaults(ctx, namespace); err != nil {
				return nil, err
			}
			defaults[namespace] = pod
		}
		if pod.IsZero() {
			continue
		}
		settings.Pod = pod
		if services[i], err = knative.Render(m, settings); err != nil {
			return nil, err
		}
	}
	return services, nil
}

func (c *command) deploy(ctx context.Context, args []string) error {
	switch {
	case len(args) > 0:
		return kit.Usage("thaw-knative deploy -f "+args[0], "%q is more than deploy takes", args[0])
	case len(c.files) == 0:
		return kit.Usage("thaw-knative deploy -f model.yaml", "-f FILE is missing")
	case c.wait && c.dry:
		return kit.Usage("leave one out", "nothing is there to wait for after --dry-run")
	}
	settings, models, err := c.readModels(ctx)
	if err != nil {
		return err
	}
	if c.dry && c.isDocument() {
		return c.printRendered(ctx, settings, models)
	}
	cluster, err := c.openFor(ctx, models)
	if err != nil {
		return err
	}
	if settings.Store, err = cluster.InstalledStore(ctx, settings.Store); err != nil {
		return err
	}
	services, err := c.rendered(ctx, settings, models, cluster)
	if err != nil {
		return err
	}
	if !c.unchecked {
		if err := cluster.Check(ctx, services...); err != nil {
			return err
		}
	}
	if c.render.Image == "" {
		if settings.Thaw, err = cluster.InstalledImage(ctx); err != nil {
			return err
		}
		if services, err = c.rendered(ctx, settings, models, cluster); err != nil {
			return err
		}
	}
	var failed error
	done := outcomes{command: c}
	for _, s := range services {
		outcome, err := cluster.Apply(ctx, s, c.dry)
		if err != nil {
			failed = err
			break
		}
		done.add(s.Namespace+"/"+s.Name, outcome)
	}
	if err := done.print("DeployedList"); err != nil {
		return err
	}
	if c.wait && failed == nil {
		for _, s := range services {
			if err := cluster.Wait(ctx, s.Namespace, s.Name); err != nil {
				return err
			}
		}
	}
	return failed
}

// printRendered prints models as Knative Services, without a cluster.
func (c *command) printRendered(ctx context.Context, settings knative.Settings, models []*functions.Model) (err error) {
	if err := c.size(ctx, models, nil); err != nil {
		return err
	}
	if err := c.fillInstalled(ctx, &settings); err != nil {
		return err
	}
	services, err := c.rendered(ctx, settings, models, nil)
	if err != nil {
		return err
	}
	return printObjects(c, services)
}

// teamHint is the hint where a model is wanted and a file has a team.
const teamHint = "a team is a namespace there; its GPUs are the namespace's ResourceQuota"

// removed is the outcome of an object that was deleted.
const removed knative.Outcome = "removed"

// dryOutcomes are the words for outcomes of a dry run.
var dryOutcomes = map[knative.Outcome]string{knative.Created: "would be created", knative.Changed: "would be changed", knative.Unchanged: "would stay as it is", removed: "would be removed"}

type outcome struct {
	Name    string          `json:"name"`
	Outcome knative.Outcome `json:"outcome"`
}

// outcomes prints what happens to objects, as it happens: what was done is done, even
// if the next one fails.
type outcomes struct {
	*command
	all []outcome
}

func (o *outcomes) add(name string, what knative.Outcome) {
	o.all = append(o.all, outcome{name, what})
	switch o.Output {
	case "name":
		fmt.Fprintln(o.Out, kit.Plain(name))
	case "table":
		word := string(what)
		if o.dry {
			word = dryOutcomes[what]
		}
		fmt.Fprintln(o.Out, kit.Plain(name), word)
	}
}

// print prints the whole list where the form of output wants one document.
func (o *outcomes) print(kind string) error {
	if !o.isDocument() {
		return nil
	}
	return o.Encode(kit.NewList(kind, o.all))
}

func (c *command) isDocument() bool { return c.Output == "json" || c.Output == "yaml" }

func (c *command) namespaceOf(cluster *knative.Cluster) string {
	return cmp.Or(c.namespace, cluster.Namespace())
}

// named reads NAME or NAMESPACE/NAME.
func (c *command) named(cluster *knative.Cluster, word string) (functions.Name, error) {
	n, err := functions.ParseName(word, c.namespaceOf(cluster))
	if err != nil || n.Adapter != "" {
		return n, kit.Usage("NAME or NAMESPACE/NAME", "%q names no model", kit.Plain(word))
	}
	return n, nil
}

func (c *command) get(ctx context.Context, args []string) error {
	if c.all && (c.namespace != "" || len(args) > 0) {
		return kit.Usage("leave -A out", "all namespaces are asked for, and one of them")
	}
	cluster, err := knative.Open(c.access)
	if err != nil {
		return err
	}
	var models []knative.Model
	if len(args) == 0 {
		namespace := c.namespaceOf(cluster)
		if c.all {
			namespace = ""
		}
		if models, err = cluster.List(ctx, namespace); err != nil {
			return err
		}
	}
	for _, word := range args {
		n, err := c.named(cluster, word)
		if err != nil {
			return err
		}
		m, err := cluster.Get(ctx, n.Team, n.Name)
		if err != nil {
			return orKind(err, word)
		}
		models = append(models, m)
	}
	if len(models) == 0 && c.Output == "table" {
		where := " in any namespace"
		if !c.all {
			where = " in namespace " + c.namespaceOf(cluster) + " (--all-namespaces looks into all)"
		}
		fmt.Fprintln(c.Err, "no models"+where)
		return nil
	}
	return kit.PrintList(c.Terminal, modelKind, models)
}

// orKind adds to the error of a model that is not there the kind that its name is near.
func orKind(err error, word string) error {
	e, ok := errors.AsType[*kit.Error](err)
	if ok && e.Exit == kit.ExitNotFound && e.Hint == "" {
		e.Hint = kit.DidYouMean(word, cli.Kinds(), 1, "kinds are "+strings.Join(cli.Kinds(), ", "))
	}
	return err
}

var modelKind = kit.Kind[knative.Model]{Word: "Model", Columns: []kit.Column[knative.Model]{
	kit.Col("NAME", func(m knative.Model) string { return m.Namespace + "/" + m.Name }),
	kit.Col("ENGINE", func(m knative.Model) string { return string(m.Engine) }),
	kit.Col("GPUS", func(m knative.Model) string { return strconv.FormatInt(m.GPUs, 10) }),
	kit.Col("REPLICAS", func(m knative.Model) string { return cmp.Or(m.Min, "0") + ".." + cmp.Or(m.Max, "∞") }),
	kit.Col("READY", func(m knative.Model) string { return string(m.Ready) }),
	kit.Col("WHY", func(m knative.Model) string {
		if m.Message == "" {
			return m.Reason
		}
		return strings.TrimPrefix(m.Reason+": "+m.Message, ": ")
	}),
	kit.Col("URL", func(m knative.Model) string { return m.URL }),
}, Name: func(m knative.Model) string { return m.Namespace + "/" + m.Name }}

func (c *command) rm(ctx context.Context, args []string) error {
	cluster, err := knative.Open(c.access)
	if err != nil {
		return err
	}
	var names []functions.Name
	for _, word := range args {
		n, err := c.named(cluster, word)
		if err != nil {
			return err
		}
		names = append(names, n)
	}
	var failed []error
	for _, n := range names { // one that is gone already keeps no other
		if err := cluster.Delete(ctx, n.Team, n.Name); err != nil {
			failed = append(failed, err)
			continue
		}
		fmt.Fprintln(c.Out, n.String()+" removed")
	}
	if len(failed) == 1 {
		return failed[0]
	}
	return errors.Join(failed...)
}

func (c *command) doctor(ctx context.Context, _ []string) error {
	settings, models, err := c.readModels(ctx)
	if err != nil {
		return err
	}
	cluster, err := c.openFor(ctx, models)
	if err != nil {
		return err
	}
	if settings.Store, err = cluster.InstalledStore(ctx, settings.Store); err != nil {
		return err
	}
	services, err := c.rendered(ctx, settings, models, cluster) // no check looks at the image
	if err != nil {
		return err
	}
	namespace := c.namespaceOf(cluster)
	if len(services) > 0 {
		namespace = services[0].Namespace
	}
	findings, err := cluster.Doctor(ctx, namespace, services...)
	if err != nil {
		return err
	}
	bad := 0
	for _, f := range findings {
		word := "ok"
		if f.Bad() {
			word = "BAD"
			bad++
		} else if f.Note {
			word = "note"
		}
		if c.Output == "table" || c.Output == "name" {
			fmt.Fprintf(c.Out, "%-4s %s\n", word, kit.Plain(f.What))
			if f.Hint != "" {
				fmt.Fprintf(c.Out, "     %s\n", kit.Plain(f.Hint))
			}
		}
	}
	if c.isDocument() {
		if err := c.Encode(kit.NewList("FindingList", findings)); err != nil {
			return err
		}
	}
	if bad > 0 {
		return &kit.Error{Exit: kit.ExitFailed, What: fmt.Sprintf("%d of %d findings keep models from running there", bad, len(findings))}
	}
	return nil
}

func (c *command) version(context.Context, []string) error {
	_, err := fmt.Fprintf(c.Out, "thaw-knative %s %s %s/%s\n", cli.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
