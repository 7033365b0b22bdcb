package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// readFiles decodes every document of files and folders (their .yaml and .yml
// files). The error has all problems of all files.
func readFiles(paths []string) ([]catalog.Document, error) {
	var files []string
	for _, p := range paths {
		info, err := os.Stat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &kit.Error{Exit: kit.ExitNotFound, What: "there is no file " + p}
		}
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, p)
			continue
		}
		entries, err := os.ReadDir(p)
		if err != nil {
			return nil, err
		}
		found := false
		for _, e := range entries {
			if ext := filepath.Ext(e.Name()); (ext == ".yaml" || ext == ".yml") && !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
				files, found = append(files, filepath.Join(p, e.Name())), true
			}
		}
		if !found {
			return nil, &kit.Error{Exit: kit.ExitNotFound, What: "there is no .yaml or .yml file in " + p}
		}
	}
	var docs []catalog.Document
	var problems catalog.Problems
	first := map[string]string{}
	for _, f := range files {
		data, err := kit.ReadBounded(f)
		if err != nil {
			return nil, err
		}
		got, err := catalog.Decode(f, data)
		if p, bad := errors.AsType[catalog.Problems](err); bad {
			problems = append(problems, p...)
			continue
		}
		for _, d := range got {
			at := fmt.Sprintf("%s:%d", d.File, d.Line)
			if other, twice := first[d.Name()]; twice {
				problems = append(problems, catalog.Problem{File: d.File, Line: d.Line, Path: "metadata.name", Message: d.Name() + " is here and at " + other})
				continue
			}
			first[d.Name()] = at
			docs = append(docs, d)
		}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return docs, nil
}

// ReadModels decodes the models of files and folders. All problems of all files
// are reported at once; a team among them is refused with teamHint, as is an empty list.
func ReadModels(paths []string, teamHint string) ([]*functions.Model, error) {
	docs, err := readFiles(paths)
	if err != nil {
		return nil, err
	}
	var models []*functions.Model
	for _, d := range docs {
		if d.Team != nil {
			return nil, kit.Usage(teamHint, "%s:%d: a team cannot be deployed", d.File, d.Line)
		}
		models = append(models, d.Model)
	}
	if len(models) == 0 {
		return nil, kit.Usage("", "there is no model in %s", strings.Join(paths, ", "))
	}
	return models, nil
}

func (c platformVerbs) check() *cobra.Command {
	var schema bool
	cmd := &cobra.Command{
		Use: "check FILE|DIR...", Short: "Say what is wrong with model and team files, without a server", GroupID: "own",
		Example: `  thaw check model.yaml
  thaw check functions/ -o json
  thaw check --schema > schema.json     # for an editor: # yaml-language-server: $schema=schema.json`,
		RunE: func(_ *cobra.Command, args []string) error {
			if schema {
				_, err := c.Out.Write(functions.Schema())
				return err
			}
			if len(args) == 0 {
				return kit.Usage("thaw check FILE|DIR...", "a file or folder is missing")
			}
			docs, err := readFiles(args)
			problems, bad := errors.AsType[catalog.Problems](err)
			if err != nil && !bad {
				return err
			}
			if c.Output == "json" || c.Output == "yaml" {
				if problems == nil {
					problems = catalog.Problems{}
				}
				if err := c.Encode(kit.NewList("ProblemList", problems)); err != nil {
					return err
				}
			}
			if bad {
				if c.Output == "json" || c.Output == "yaml" {
					return &kit.Error{Exit: kit.ExitFailed, What: fmt.Sprintf("%d problems", len(problems))}
				}
				return &kit.Error{Exit: kit.ExitFailed, Err: err}
			}
			if c.Output == "table" || c.Output == "wide" || c.Output == "name" {
				for _, d := range docs {
					fmt.Fprintln(c.Out, kit.Plain(d.Name()))
				}
			}
			c.Remark("%d good", len(docs))
			return nil
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON schema of the files and end")
	return cmd
}

// makeSourcesAbsolute makes relative sources absolute: a deployed model has no folder.
func makeSourcesAbsolute(m *functions.Model, dir string) error {
	sources := []*string{&m.Spec.Source}
	m.Spec.Adapters = slices.Clone(m.Spec.Adapters)
	for i := range m.Spec.Adapters {
		sources = append(sources, &m.Spec.Adapters[i].Source)
	}
	for _, s := range sources {
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

func (c modelVerbs) deploy() *cobra.Command {
	var files []string
	var dry, wait bool
	cmd := &cobra.Command{
		Use: "deploy -f FILE|DIR", Short: "Add or change models", GroupID: "own", Args: kit.ExactArgs(),
		Long: `Add or change models. What is given is checked whole before anything is sent, and
kept by the server under DATA/functions. A relative source counts from its file
and is made absolute, so it must be a folder of the server's machine.

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
			models, err := ReadModels(files, "put it into the server's --functions folder")
			if err != nil {
				return err
			}
			for _, m := range models {
				if err := makeSourcesAbsolute(m, m.Dir); err != nil {
					return err
				}
			}
			var done []api.DeployReply
			for _, m := range models {
				b, err := catalog.EncodeYAML(m)
				if err != nil {
					return err
				}
				d, err := cl.Deploy(ctx, m.FullName(), b, dry)
				if err != nil {
					return err
				}
				done = append(done, d)
				if wait && !dry {
					if err := c.untilReady(ctx, cl, m.FullName()); err != nil {
						return err
					}
				}
			}
			return c.printDeployed(cl, done, dry)
		}),
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "file or folder; may be repeated")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "let the server check it and change nothing")
	cmd.Flags().BoolVar(&wait, "wait", false, "wake it and wait until it is ready")
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
