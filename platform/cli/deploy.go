package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// detach makes a document independent of the folder of its file, which the server does not
// have: paths become absolute, examples of intents become part of the document.
func detach(d catalog.Document) error {
	var paths []*string
	dir := ""
	switch {
	case d.Model != nil:
		dir = d.Model.Dir
		paths = append(paths, &d.Model.Spec.Source)
		for i := range d.Model.Spec.Adapters {
			paths = append(paths, &d.Model.Spec.Adapters[i].Source)
		}
	case d.Remote != nil:
		dir = d.Remote.Dir
		paths = append(paths, &d.Remote.Spec.KeyFrom.File)
	case d.Router != nil:
		for i := range d.Router.Spec.Intents.List {
			in := &d.Router.Spec.Intents.List[i]
			in.Examples, in.ExamplesFrom, in.Loaded = append(in.Examples, in.Loaded...), "", nil
		}
	}
	for _, s := range paths {
		if *s == "" || strings.Contains(*s, "://") || filepath.IsAbs(*s) {
			continue
		}
		abs, err := filepath.Abs(filepath.Join(dir, *s))
		if err != nil {
			return err
		}
		*s = abs
	}
	return nil
}

// readDeployable reads what deploy sends: all kinds but teams, Routers last, so that what
// they name is there before them. Each is detached from its folder.
func readDeployable(paths []string) (docs []catalog.Document, files [][]byte, err error) {
	docs, _, err = readFiles(catalog.Reader{Examples: true}, paths)
	if err != nil {
		return nil, nil, err
	}
	if len(docs) == 0 {
		return nil, nil, kit.Usage("", "there is no function in %s", strings.Join(paths, ", "))
	}
	slices.SortStableFunc(docs, func(a, b catalog.Document) int { return rank(a) - rank(b) })
	for _, d := range docs {
		at := fmt.Sprintf("%s:%d", d.File, d.Line)
		if d.Team != nil {
			return nil, nil, kit.Usage("put it into the server's --functions folder", "%s: a team cannot be deployed", at)
		}
		if err := detach(d); err != nil {
			return nil, nil, err
		}
		b, err := catalog.EncodeYAML(d.Value())
		if err != nil {
			return nil, nil, err
		}
		if _, err := catalog.Decode(d.FullName().String(), b); d.Router != nil && err != nil {
			return nil, nil, &kit.Error{Exit: kit.ExitUsage, What: at + ": with the examples of its intents the router is too large to be sent", Err: err,
				Hint: "put its file and the examples into the server's --functions folder"}
		}
		files = append(files, b)
	}
	return docs, files, nil
}

func rank(d catalog.Document) int {
	if d.Router != nil {
		return 1
	}
	return 0
}

func (c modelVerbs) deploy() *cobra.Command {
	var files []string
	var dry, wait bool
	cmd := &cobra.Command{
		Use: "deploy -f FILE|DIR", Short: "Add or change models, routers and remotes", GroupID: "own", Args: kit.ExactArgs(),
		Long: `Add or change models, routers and remotes. What is given is checked whole before anything
is sent, and kept by the server under DATA/functions. A relative source, or file of a key,
counts from its file and is made absolute, so it must be on the server's machine. Examples
of intents in files of their own are sent with the router. A target of a router that can
never be chosen is named as a warning.

With --to knative each model becomes a Knative Service on a Kubernetes cluster. The
program thaw-knative, beside this one, does that; with --dry-run -o yaml it prints
what kubectl apply takes, and needs no cluster. What wakes and scales it there is what
thaw-knative install puts on the cluster. Before anything is applied it is looked
whether the cluster could run it: settings of Knative, nodes, quotas, classes. What
spec.pod says of nodes (nodeSelector, tolerations, runtimeClassName, …) is for clusters
alone; --wait waits there until the model can be asked for, which wakes nothing.`,
		Example: `  thaw deploy -f model.yaml
  thaw deploy -f model.yaml --wait
  thaw deploy -f models/ --dry-run
  thaw deploy -f model.yaml --to knative --namespace team-a
  thaw deploy -f model.yaml --to knative --dry-run -o yaml`,
		RunE: c.remote(0, func(ctx context.Context, cl *api.Client, _ []string) error {
			if len(files) == 0 {
				return kit.Usage("thaw deploy -f model.yaml", "-f FILE is missing")
			}
			docs, bodies, err := readDeployable(files)
			if err != nil {
				return err
			}
			var done []api.DeployReply
			for i, doc := range docs {
				d, err := cl.Deploy(ctx, doc.FullName(), bodies[i], dry)
				if err != nil {
					return err
				}
				done = append(done, d)
				if wait && !dry && doc.Model != nil {
					if err := c.untilReady(ctx, cl, doc.FullName()); err != nil {
						return err
					}
				}
			}
			return c.printDeployed(cl, done, dry)
		}),
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "file or folder; may be repeated")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "let the server check it and change nothing")
	cmd.Flags().BoolVar(&wait, "wait", false, "wake models and wait until they are ready")
	c.toKnative(cmd, cluster{
		flags: func(f *kit.FlagSet) {
			f.StringP("namespace", "n", "", "for models whose file names none")
			f.String("thaw-image", "", "image whose entry point is thaw [THAW_IMAGE]")
			f.StringArray("image", nil, "ENGINE=IMAGE to run an engine from; may be repeated")
			f.String("store", "", "folder of the loader on each node")
			f.Duration("request-timeout", 0, "the longest a request may take")
			f.String("pod", "", "file with what pods of models with GPUs say where spec.pod does not")
			f.Bool("skip-preflight", false, "do not look first whether the cluster could run them")
		},
		passed: []string{"filename", "dry-run", "wait"},
	})
	return cmd
}

// untilReady wakes a function and follows its start.
func (c *connection) untilReady(ctx context.Context, cl *api.Client, name functions.Name) error {
	w, err := cl.Wake(ctx, name, 0)
	if err != nil {
		return err
	}
	return c.followColdStart(ctx, cl, name, w.ColdStart)
}

func (c *connection) printDeployed(cl *api.Client, done []api.DeployReply, dry bool) error {
	switch c.Output {
	case "json", "yaml":
		return c.Encode(kit.NewList("DeployedList", done))
	}
	for _, d := range done {
		word := "changed"
		if d.Created {
			word = "created"
		}
		if dry {
			word = "would be " + word
		}
		for _, w := range d.Warnings {
			w.File, w.Line, w.Column = d.Name, 0, 0
			c.Remark("%v", w)
		}
		if c.Output == "name" {
			fmt.Fprintln(c.Out, kit.Plain(d.Name))
			continue
		}
		fmt.Fprintln(c.Out, kit.Plain(d.Name+" "+word))
	}
	if !dry && c.Output != "name" {
		d := done[len(done)-1]
		key := ""
		if c.keyFrom == "--key" || c.keyFrom == "THAW_KEY" {
			key = " -H \"Authorization: Bearer $THAW_KEY\""
		}
		c.Remark("try it:")
		c.Remark("  thaw run %s \"Hello\"", shortName(d.Name))
		c.Remark("  curl -N %s/v1/chat/completions%s -H 'Content-Type: application/json' -d '{\"model\":\"%s\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'", cl.Server(), key, shortName(d.Name))
	}
	return nil
}
