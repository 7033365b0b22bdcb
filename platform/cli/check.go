package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/doctor"
	"github.com/thaw-dev/thaw/platform/cli/files"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/sizer"
)

func (v platformVerbs) check() *cobra.Command {
	var schema bool
	cmd := &cobra.Command{
		Use: "check FILE|DIR...", Short: "Say what is wrong with files of models, routers, remotes, compositions and teams, without a server",
		GroupID: "own",
		Example: `  thaw check model.yaml
  thaw check functions/ -o json
  thaw check - < model.yaml
  thaw check --schema > schema.json     # for an editor: # yaml-language-server: $schema=schema.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if schema {
				_, err := v.Out.Write(functions.Schema())
				return err
			}
			if len(args) == 0 {
				return kit.Usage("thaw check FILE|DIR...", "a file or folder is missing")
			}
			reader := catalog.Reader{Examples: true, Plain: httpsource.NewHostTrust(v.programs.Getenv).Trusts}
			docs, warnings, err := files.Read(v.In, reader, args, files.HasFolder(args))
			problems, bad := errors.AsType[catalog.Problems](err)
			if err != nil && !bad {
				return err
			}
			if len(docs) == 0 { // there is nothing that could be good
				for i := range warnings {
					warnings[i].Warning = false
				}
			}
			problems = append(problems, v.checkGPUs(cmd.Context(), docs)...)
			for _, d := range docs {
				if d.Model != nil { // the server's machine may have them
					problems = append(problems, catalog.WarningsAt(d.File, d.Line, loader.MissingFolders(d.Model))...)
				}
			}
			return v.printChecked(docs, append(problems, warnings...))
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON schema of the files and end")
	return cmd
}

// checkGPUs returns the problems of models whose GPUs cannot share the attention heads of the
// checkpoint in a folder of this machine; a check reads nothing from a network.
func (v platformVerbs) checkGPUs(ctx context.Context, docs []catalog.Document) (problems catalog.Problems) {
	s := sizer.Sizer{Sources: v.programs.Sources}
	for _, d := range docs {
		if v.programs.Sources == nil || d.Model == nil || strings.Contains(d.Model.Spec.Source, "://") && !strings.HasPrefix(d.Model.Spec.Source, "file://") {
			continue
		}
		if err := s.CheckGPUs(ctx, d.Model); err != nil {
			problems = append(problems, catalog.Problem{File: d.File, Line: d.Line, Path: "spec.resources.gpus", Message: err.Error()})
		}
	}
	return problems
}

// printChecked prints what a check found. It fails if a problem is more than a warning.
func (v platformVerbs) printChecked(docs []catalog.Document, problems catalog.Problems) error {
	wrong := problems.Wrong()
	if v.Output == "json" || v.Output == "yaml" {
		if err := v.Encode(kit.NewList("ProblemList", problems)); err != nil {
			return err
		}
		if len(wrong) > 0 {
			return &kit.Error{Exit: kit.ExitFailed, What: fmt.Sprintf("%d problems", len(wrong))}
		}
	} else if len(wrong) > 0 {
		return &kit.Error{Exit: kit.ExitFailed, Err: wrong}
	}
	if v.Output == "table" || v.Output == "wide" || v.Output == "name" {
		for _, d := range docs {
			fmt.Fprintln(v.Out, kit.Plain(d.Name()))
		}
		for _, p := range problems {
			v.Remark("%v", p)
		}
	}
	v.Remark("%d good", len(docs))
	return nil
}

func (c *connection) doctor() *cobra.Command {
	cmd := doctor.New(doctor.Options{
		Terminal: c.Terminal, Version: Version, Getenv: c.programs.Getenv, GPUs: c.programs.GPUs,
		Embedded:    func(engine string) bool { return c.programs.Engines[engine] != nil },
		DataFolders: c.keys.dataFolders, Client: c.client, WithHint: c.withHint,
		ServerNamed:   func() bool { return cmp.Or(c.server, c.programs.Getenv("THAW_SERVER")) != "" },
		DefaultServer: DefaultServer, IsLocal: isLocal, QueryTimeout: queryTimeout,
	})
	c.toKnative(cmd, cluster{
		flags: func(f *kit.FlagSet) {
			f.StringP("namespace", "n", "", "whose pods are meant")
			f.StringArrayP("filename", "f", nil, "file or folder of model files: what these need as well; may be repeated")
			new(kit.RenderFlags).Register(f, c.programs.Getenv, "", 0)
		},
		never: []string{"functions"},
	})
	return cmd
}
