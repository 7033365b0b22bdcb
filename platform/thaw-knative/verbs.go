package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/install"
)

// command is one run of the program.
type command struct {
	getenv   func(string) string
	out, err io.Writer

	access    knative.Access
	namespace string
	output    string
	timeout   time.Duration
	all       bool
	files     []string
	dry       bool
	thaw      string
	images    []string
	store     string
	request   time.Duration
	pod       string
	unchecked bool

	installation           install.Options
	controlling            controlling
	activation             activation
	loaders, file          string
	wait, uninstall, force bool

	team, keyName         string
	gpus, guaranteed      int
	limits, groups, users []string
	open                  bool
}

// verb is one word that the program knows.
type verb struct {
	use, short, examples string
	flags                func(*command, *pflag.FlagSet)
	run                  func(*command, context.Context, []string) error
}

func verbs() map[string]verb {
	return map[string]verb{
		"deploy": {"deploy -f FILE|DIR", "Render models as Knative Services and apply them", `  thaw-knative deploy -f model.yaml
  thaw-knative deploy -f model.yaml --dry-run            let the cluster check it, change nothing
  thaw-knative deploy -f model.yaml --dry-run -o yaml    print it, without a cluster; kubectl apply takes it
  thaw-knative deploy -f model.yaml --pod gpu-nodes.yaml tolerations and the like of this cluster's GPU nodes
  thaw-knative deploy -f model.yaml --wait               until it can be asked for, or why not`, deployFlags, (*command).deploy},
		"get": {"get [NAME...]", "List the models of a cluster", `  thaw-knative get
  thaw-knative get -A -o json`, func(c *command, f *pflag.FlagSet) {
			f.BoolVarP(&c.all, "all-namespaces", "A", false, "of all namespaces")
		}, (*command).get},
		"rm": {"rm NAME...", "Take models away from a cluster", "  thaw-knative rm llama team-b/qwen", nil, (*command).rm},
		"doctor": {"doctor [-f FILE|DIR]", "Say what keeps models from running on a cluster", `  thaw-knative doctor
  thaw-knative doctor -f model.yaml      and what that model needs: settings, nodes, quotas, classes`, doctorFlags, (*command).doctor},
		"install":     installVerb(),
		"keys":        keysVerb(),
		"link-token":  tokenVerb(),
		"team":        teamVerb(),
		"chown-store": ownVerb(),
		"version":     {"version", "Print the version", "", nil, (*command).version},
	}
}

func deployFlags(c *command, f *pflag.FlagSet) {
	f.StringArrayVarP(&c.files, "filename", "f", nil, "file or folder of model files; may be repeated")
	f.BoolVar(&c.dry, "dry-run", false, "change nothing; with -o yaml or json, print what would be applied, without a cluster")
	f.BoolVar(&c.wait, "wait", false, "until the models can be asked for, within --timeout")
	f.BoolVar(&c.unchecked, "skip-preflight", false, "do not look first whether the cluster could run them")
	renderFlags(c, f)
}

func doctorFlags(c *command, f *pflag.FlagSet) {
	f.StringArrayVarP(&c.files, "filename", "f", nil, "file or folder of model files: what these need as well; may be repeated")
	renderFlags(c, f)
}

// renderFlags say of models what their files do not.
func renderFlags(c *command, f *pflag.FlagSet) {
	f.StringVar(&c.thaw, "thaw-image", cmp.Or(c.getenv("THAW_IMAGE"), "thaw-dev/thaw:"+imageTag(cli.Version)), "image whose entry point is thaw [THAW_IMAGE]")
	f.StringArrayVar(&c.images, "image", nil, "ENGINE=IMAGE to run an engine from; may be repeated")
	f.StringVar(&c.store, "store", knative.DefaultStore, "folder of the loader on each node")
	f.DurationVar(&c.request, "request-timeout", knative.DefaultTimeout, "the longest a request may take")
	f.StringVar(&c.pod, "pod", "", "file with what pods of models with GPUs say where spec.pod does not (nodeSelector, tolerations, …); else the annotation "+knative.PodAnnotation+" of the namespace, where a cluster is asked")
}

// imageTag makes a version the tag of an image.
func imageTag(version string) string {
	return strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '-'
	}, version)
}

func usageError(hint, format string, args ...any) error {
	return &kit.Error{Exit: kit.ExitUsage, What: fmt.Sprintf(format, args...), Hint: hint}
}

func (c *command) main(ctx context.Context, args []string) int {
	err := c.verb(ctx, args)
	return kit.NewTerminal(nil, c.out, c.err, c.getenv).Report(ctx, withExitCode(err))
}

// withExitCode gives an error of the cluster the exit code that thaw's have.
func withExitCode(err error) error {
	e, ok := errors.AsType[*knative.Error](err)
	if !ok {
		return err
	}
	exit := map[knative.Kind]int{knative.Refused: kit.ExitUsage, knative.NotFound: kit.ExitNotFound, knative.Denied: kit.ExitDenied, knative.TimedOut: kit.ExitTimeout, knative.Away: kit.ExitUnavailable}[e.Kind]
	return &kit.Error{Exit: cmp.Or(exit, kit.ExitFailed), Hint: e.Hint, Err: err}
}

func (c *command) verb(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] == "help" && len(args) == 1 || args[0] == "--help" || args[0] == "-h" {
		c.help()
		return nil
	}
	word := args[0]
	args = args[1:]
	if word == "help" {
		word, args = args[0], []string{"--help"}
	}
	if p, known := parts()[word]; known {
		return c.part(ctx, word, p(c), args)
	}
	if asks(word, args) {
		return c.ask(ctx, word, args)
	}
	v, known := verbs()[word]
	if !known {
		hint := "thaw-knative --help lists the verbs"
		if near := functions.Nearest(word, append(words(), slices.Collect(maps.Keys(asking))...), 1); len(near) > 0 {
			hint = "did you mean " + near[0] + "?"
		}
		return usageError(hint, "%q is no verb of thaw-knative", word)
	}
	f := pflag.NewFlagSet(word, pflag.ContinueOnError)
	f.StringVar(&c.access.Kubeconfig, "kubeconfig", "", "file that leads to the cluster [KUBECONFIG]")
	f.StringVar(&c.access.Context, "context", "", "context of it")
	f.StringVarP(&c.namespace, "namespace", "n", "", "namespace, which is the team")
	f.StringVarP(&c.output, "output", "o", "table", "form of output: table, json, yaml, name")
	f.DurationVar(&c.timeout, "timeout", time.Minute, "give up after so long")
	if v.flags != nil {
		v.flags(c, f)
	}
	if helped, err := c.parse(f, args, v.use, v.short, v.examples); helped || err != nil {
		return err
	}
	if !slices.Contains([]string{"table", "json", "yaml", "name"}, c.output) {
		return usageError("one of table, json, yaml, name", "%q is no form of output", c.output)
	}
	if c.timeout <= 0 {
		return usageError("such as 1m", "%s is no time to wait", c.timeout)
	}
	c.access.Warn = func(text string) { fmt.Fprintln(c.err, "warning:", kit.Plain(text)) }
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return v.run(c, ctx, f.Args())
}

// parse reads the flags of a verb or a part. helped says that what there is to know of
// it was asked for, and told.
func (c *command) parse(f *pflag.FlagSet, args []string, use, short, examples string) (helped bool, err error) {
	f.SetOutput(io.Discard)
	switch err := f.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(c.out, "%s\n\nUsage:\n  thaw-knative %s\n", short, use)
		if examples != "" {
			fmt.Fprintf(c.out, "\nExamples:\n%s\n", examples)
		}
		fmt.Fprintf(c.out, "\nFlags:\n%s", f.FlagUsages())
		return true, nil
	case err != nil:
		return false, kit.FlagError("thaw-knative "+f.Name(), err, f)
	}
	return false, nil
}

func (c *command) help() {
	fmt.Fprintf(c.out, "Models as Knative Services on Kubernetes.\n\nUsage:\n  thaw-knative VERB\n\nVerbs:\n")
	all := verbs()
	for _, word := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(c.out, "  %-22s %s\n", all[word].use, all[word].short)
	}
	fmt.Fprintf(c.out, "\nAsked of the controller, with the flags that thaw has for a server:\n")
	for _, word := range slices.Sorted(maps.Keys(asking)) {
		fmt.Fprintf(c.out, "  %-22s %s\n", word, asking[word])
	}
	fmt.Fprintf(c.out, "\nParts of a cluster, which install starts there:\n")
	runs := parts()
	for _, word := range slices.Sorted(maps.Keys(runs)) {
		p := runs[word](c)
		fmt.Fprintf(c.out, "  %-22s %s\n", p.use, p.short)
	}
	fmt.Fprintln(c.out, "\nthaw-knative VERB --help tells more about one.")
}

// settings are what the flags say of every model.
func (c *command) settings() (s knative.Settings, err error) {
	s = knative.Settings{Thaw: c.thaw, Namespace: c.namespace, Store: c.store, Timeout: c.request, Images: map[functions.Engine]string{}}
	for _, word := range c.images {
		engine, image, ok := strings.Cut(word, "=")
		if !ok || image == "" || !slices.Contains(functions.Engines, functions.Engine(engine)) {
			return s, usageError("such as vllm="+knative.DefaultImage(functions.EngineVLLM), "%q does not name an engine and its image", word)
		}
		s.Images[functions.Engine(engine)] = image
	}
	if c.pod != "" {
		if s.Pod, err = c.readPod(); err != nil {
			return s, err
		}
	}
	return s, nil
}

// readPod reads the file that --pod names.
func (c *command) readPod() (functions.Pod, error) {
	text, err := os.ReadFile(c.pod)
	if errors.Is(err, fs.ErrNotExist) {
		return functions.Pod{}, &kit.Error{Exit: kit.ExitNotFound, Err: err}
	} else if err != nil {
		return functions.Pod{}, err
	}
	pod, err := knative.ReadPod(c.pod, text)
	if err != nil {
		return pod, &kit.Error{Exit: kit.ExitUsage, Err: err, Hint: "what stands under spec.pod of a model file, by itself"}
	}
	return pod, nil
}

// rendered are the models of the files as services. With a cluster its namespaces
// may say more of pods; without one only the flags do.
func (c *command) rendered(ctx context.Context, settings knative.Settings, models []*functions.Model, cluster *knative.Cluster) ([]*knative.Service, error) {
	services, err := knative.RenderAll(models, settings)
	if err != nil || cluster == nil || c.pod != "" {
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
		return usageError("thaw-knative deploy -f "+args[0], "%q is more than deploy takes", args[0])
	case len(c.files) == 0:
		return usageError("thaw-knative deploy -f model.yaml", "-f FILE is missing")
	case c.wait && c.dry:
		return usageError("leave one out", "nothing is there to wait for after --dry-run")
	}
	settings, err := c.settings()
	if err != nil {
		return err
	}
	models, err := cli.ReadModels(c.files)
	if err != nil {
		return err
	}
	services, err := c.rendered(ctx, settings, models, nil)
	if err != nil {
		return err
	}
	if c.dry && (c.output == "yaml" || c.output == "json") {
		b, err := knative.FormatObjects(c.output, services...)
		if err != nil {
			return err
		}
		_, err = c.out.Write(b)
		return err
	}
	cluster, err := knative.Open(c.access)
	if err != nil {
		return err
	}
	if services, err = c.rendered(ctx, settings, models, cluster); err != nil {
		return err
	}
	if !c.unchecked {
		if err := cluster.Check(ctx, services...); err != nil {
			return err
		}
	}
	type deployed struct {
		Name    string          `json:"name"`
		Outcome knative.Outcome `json:"outcome"`
	}
	done := []deployed{}
	var failed error
	for _, s := range services {
		outcome, err := cluster.Apply(ctx, s, c.dry)
		if err != nil {
			failed = err
			break
		}
		d := deployed{s.Namespace + "/" + s.Name, outcome}
		done = append(done, d)
		switch c.output { // as it happens: what was done is done, whatever the next one says
		case "name":
			fmt.Fprintln(c.out, d.Name)
		case "table":
			word := string(outcome)
			if c.dry {
				word = map[knative.Outcome]string{knative.Created: "would be created", knative.Changed: "would be changed", knative.Unchanged: "would stay as it is"}[outcome]
			}
			fmt.Fprintln(c.out, d.Name, word)
		}
	}
	if c.output == "json" || c.output == "yaml" {
		if err := kit.Encode(c.out, c.output, listOf("DeployedList", done)); err != nil {
			return err
		}
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

// list is what -o json and yaml print.
type list struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      any    `json:"items"`
}

func listOf(kind string, items any) list { return list{functions.APIVersion, kind, items} }

// named reads NAME or NAMESPACE/NAME.
func (c *command) named(cluster *knative.Cluster, word string) (functions.Name, error) {
	n, err := functions.ParseName(word, cmp.Or(c.namespace, cluster.Namespace()))
	if err != nil || n.Adapter != "" {
		return n, usageError("NAME or NAMESPACE/NAME", "%q names no model", kit.Plain(word))
	}
	return n, nil
}

func (c *command) get(ctx context.Context, args []string) error {
	if c.all && (c.namespace != "" || len(args) > 0) {
		return usageError("leave -A out", "all namespaces are asked for, and one of them")
	}
	cluster, err := knative.Open(c.access)
	if err != nil {
		return err
	}
	models := []knative.Model{}
	if len(args) == 0 {
		namespace := cmp.Or(c.namespace, cluster.Namespace())
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
			return err
		}
		models = append(models, m)
	}
	switch c.output {
	case "json", "yaml":
		return kit.Encode(c.out, c.output, listOf("ModelList", models))
	case "name":
		for _, m := range models {
			fmt.Fprintln(c.out, m.Namespace+"/"+m.Name)
		}
		return nil
	}
	if len(models) == 0 {
		where := " in any namespace"
		if !c.all {
			where = " in namespace " + cmp.Or(c.namespace, cluster.Namespace()) + " (--all-namespaces looks into all)"
		}
		fmt.Fprintln(c.err, "no models"+where)
		return nil
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tENGINE\tGPUS\tREPLICAS\tREADY\tWHY\tURL")
	for _, m := range models {
		why := m.Reason
		if m.Message != "" {
			why = strings.TrimPrefix(why+": "+m.Message, ": ")
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s..%s\t%s\t%s\t%s\n", kit.Plain(m.Namespace+"/"+m.Name), cmp.Or(kit.Plain(string(m.Engine)), "-"), m.GPUs,
			cmp.Or(kit.Plain(m.Min), "0"), cmp.Or(kit.Plain(m.Max), "∞"), m.Ready, cmp.Or(kit.Plain(why), "-"), cmp.Or(kit.Plain(m.URL), "-"))
	}
	return w.Flush()
}

func (c *command) rm(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return usageError("thaw-knative rm NAME", "NAME is missing")
	}
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
		fmt.Fprintln(c.out, n.String()+" removed")
	}
	if len(failed) == 1 {
		return failed[0]
	}
	return errors.Join(failed...)
}

func (c *command) doctor(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return usageError("", "%q is more than doctor takes", args[0])
	}
	settings, err := c.settings()
	if err != nil {
		return err
	}
	var models []*functions.Model
	if len(c.files) > 0 {
		if models, err = cli.ReadModels(c.files); err != nil {
			return err
		}
		if _, err := c.rendered(ctx, settings, models, nil); err != nil {
			return err
		}
	}
	cluster, err := knative.Open(c.access)
	if err != nil {
		return err
	}
	services, err := c.rendered(ctx, settings, models, cluster)
	if err != nil {
		return err
	}
	namespace := cmp.Or(c.namespace, cluster.Namespace())
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
		if c.output == "table" || c.output == "name" {
			fmt.Fprintf(c.out, "%-4s %s\n", word, kit.Plain(f.What))
			if f.Hint != "" {
				fmt.Fprintf(c.out, "     %s\n", kit.Plain(f.Hint))
			}
		}
	}
	if c.output == "json" || c.output == "yaml" {
		if err := kit.Encode(c.out, c.output, listOf("FindingList", findings)); err != nil {
			return err
		}
	}
	if bad > 0 {
		return &kit.Error{Exit: kit.ExitFailed, What: fmt.Sprintf("%d of %d findings keep models from running there", bad, len(findings))}
	}
	return nil
}

func (c *command) version(context.Context, []string) error {
	_, err := fmt.Fprintf(c.out, "thaw-knative %s %s %s/%s\n", cli.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
