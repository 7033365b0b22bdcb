package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/describe"
	"github.com/thaw-dev/thaw/platform/cli/files"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

func (m modelVerbs) deploy() *cobra.Command {
	var paths []string
	var dry, wait bool
	cmd := &cobra.Command{
		Use: "deploy -f FILE|DIR", Short: "Add or change models, routers, remotes and compositions", GroupID: "own", Args: kit.ExactArgs(),
		Long: `Add or change models, routers, remotes and compositions. What is given is checked whole
before anything is sent, and kept by the server under DATA/functions. A relative source, or file of a key,
counts from its file and is made absolute, so it must be on the server's machine. So must the
folder of a file whose command engine has arguments that begin with ./ or ../: the engine
runs in it (spec.folder), and no argument is changed. Examples
of intents in files of their own are sent with the router. A target of a router, or a
member of a composition, that is neither on the server nor deployed with it is an error;
one that can never be chosen is named as a warning.

With --to knative each model becomes a Knative Service on a Kubernetes cluster. The
program thaw-knative, beside this one, does that; with --dry-run -o yaml it prints
what kubectl apply takes, and needs no cluster where --thaw-image or THAW_IMAGE names
the image of thaw; else that of the cluster's controller is taken. What wakes and scales it there is what
thaw-knative install puts on the cluster. Before anything is applied it is looked
whether the cluster could run it: settings of Knative, nodes, quotas, classes. What
spec.pod says of nodes (nodeSelector, tolerations, runtimeClassName, …) is for clusters
alone; --wait waits there until the model can be asked for, which wakes nothing.`,
		Example: `  thaw deploy -f model.yaml
  thaw deploy -f model.yaml --wait
  thaw deploy -f models/ --dry-run
  thaw deploy -f - < model.yaml
  thaw deploy -f model.yaml --to knative --namespace team-a
  thaw deploy -f model.yaml --to knative --dry-run -o yaml`,
		RunE: m.remote(0, func(ctx context.Context, cl *api.Client, _ []string) error {
			if len(paths) == 0 {
				return kit.Usage("thaw deploy -f model.yaml", "-f FILE is missing")
			}
			docs, bodies, err := files.ReadDeployable(m.In, paths)
			if err != nil {
				return err
			}
			var done []api.DeployReply
			for i, doc := range docs {
				d, err := cl.Deploy(ctx, doc.FullName(), bodies[i], dry, files.TargetsAmong(docs[:i], doc)...)
				if err != nil {
					return inFile(doc, err)
				}
				done = append(done, d)
				if wait && !dry && doc.Model != nil {
					w, err := cl.Wake(ctx, doc.FullName(), 0)
					if err == nil {
						err = m.followColdStart(ctx, cl, doc.FullName(), w.ColdStart)
					}
					if err != nil {
						return err
					}
				}
			}
			return m.printDeployed(ctx, cl, done, dry)
		}),
	}
	cmd.Flags().StringArrayVarP(&paths, "filename", "f", nil, "file or folder, - for stdin; may be repeated")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "let the server check it and change nothing")
	cmd.Flags().BoolVar(&wait, "wait", false, "wake models and wait until they are ready")
	m.toKnative(cmd, cluster{
		flags: func(f *kit.FlagSet) {
			f.StringP("namespace", "n", "", "for models whose file names none; else that of the kubeconfig's context")
			new(kit.RenderFlags).Register(f, m.programs.Getenv, 0)
			f.Bool("skip-preflight", false, "do not look first whether the cluster could run them")
		},
		passed: []string{"filename", "dry-run", "wait"},
	})
	return cmd
}

// inFile names the file of a document, and the line where it begins, in a server's error about
// it: the server counts the lines of what was sent.
func inFile(doc catalog.Document, err error) error {
	refused, ok := errors.AsType[*api.StatusError](err)
	if !ok {
		return err
	}
	place := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(doc.FullName().String()) + `:\d+(:\d+)?: `)
	shown := *refused
	shown.Message = place.ReplaceAllLiteralString(refused.Message, fmt.Sprintf("%s:%d: ", doc.File, doc.Line))
	return &shown
}

func (m modelVerbs) printDeployed(ctx context.Context, cl *api.Client, done []api.DeployReply, dry bool) error {
	switch m.Output {
	case "json", "yaml":
		return m.Encode(kit.NewList("DeployedList", done))
	}
	for _, d := range done {
		word := "changed"
		switch {
		case d.Created:
			word = "created"
		case d.Unchanged:
			word = "unchanged"
		}
		if dry {
			word = "would be " + word
		}
		if d.Sized != "" {
			m.Remark("%s: %s", d.Name, d.Sized)
		}
		if d.Unmet != "" {
			m.Remark("warning: %s: no node that is there could hold it: %s", d.Name, d.Unmet)
		}
		for _, w := range d.Warnings {
			w.File, w.Line, w.Column = d.Name, 0, 0
			m.Remark("%v", w)
		}
		if m.Output == "name" {
			fmt.Fprintln(m.Out, kit.Plain(d.Name))
			continue
		}
		fmt.Fprintln(m.Out, kit.Plain(d.Name+" "+word))
	}
	if !dry && m.Output != "name" {
		d := done[len(done)-1]
		if d.Remote != nil {
			if why := describe.WhyRefused(d.Remote, teamData(ctx, cl, d.Team)); why != "" {
				m.Remark("%s", why)
				return nil
			}
		}
		key := ""
		if m.keys.named != "" {
			key = " -H \"Authorization: Bearer $THAW_KEY\""
		}
		m.Remark("try it:")
		m.Remark("  thaw run %s \"Hello\"", tables.ShortName(d.Name))
		m.Remark("  curl -N %s/v1/chat/completions%s -H 'Content-Type: application/json' -d "+
			"'{\"model\":\"%s\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'", cl.Server(), key,
			tables.ShortName(d.Name))
	}
	return nil
}

// teamData is the class of a team's data; "" where it has set none, or is not to be seen.
func teamData(ctx context.Context, cl *api.Client, team string) functions.DataClass {
	teams, _ := api.GetItems[api.Team](ctx, cl, tables.Teams().Path) // advice is given without them too
	for _, t := range teams {
		if t.Name == team {
			return t.Data
		}
	}
	return ""
}
