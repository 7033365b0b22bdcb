package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// readFiles decodes every document of files and folders (their .yaml and .yml
// files). The error has all problems of all files; warnings are what the documents work
// with all the same.
func readFiles(reader catalog.Reader, paths []string) (docs []catalog.Document, warnings catalog.Problems, err error) {
	files, err := listFiles(paths)
	if err != nil {
		return nil, nil, err
	}
	var problems catalog.Problems
	for _, f := range files {
		data, err := kit.ReadBounded(f)
		if err != nil {
			return nil, nil, err
		}
		got, err := reader.Decode(f, data)
		if p, bad := errors.AsType[catalog.Problems](err); bad {
			problems = append(problems, p...)
			continue
		}
		docs = append(docs, got...)
	}
	problems = append(problems, catalog.Duplicates(docs)...)
	targets := catalog.CheckTargets(docs)
	if problems = append(problems, targets.Wrong()...); len(problems) > 0 {
		return nil, nil, problems
	}
	return docs, targets, nil
}

// listFiles lists the files of paths, and the .yaml and .yml files of folders.
func listFiles(paths []string) ([]string, error) {
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
	return files, nil
}

// ReadModels decodes the models of files and folders. All problems of all files
// are reported at once. It is for clusters, which have models alone: a team among them is
// refused with teamHint, as are other kinds and an empty list.
func ReadModels(paths []string, teamHint string) ([]*functions.Model, error) {
	docs, _, err := readFiles(catalog.Reader{}, paths)
	if err != nil {
		return nil, err
	}
	var models []*functions.Model
	for _, d := range docs {
		if d.Team != nil {
			return nil, kit.Usage(teamHint, "%s:%d: a team cannot be deployed", d.File, d.Line)
		}
		if d.Model == nil {
			return nil, kit.Usage("leave it out, or deploy it to a server", "%s:%d: a %s is not on Kubernetes yet", d.File, d.Line, d.Kind())
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
		Use: "check FILE|DIR...", Short: "Say what is wrong with files of models, routers, remotes and teams, without a server", GroupID: "own",
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
			reader := catalog.Reader{Examples: true, Plain: httpsource.NewHostTrust(c.getenv).Trusts}
			docs, warnings, err := readFiles(reader, args)
			problems, bad := errors.AsType[catalog.Problems](err)
			if err != nil && !bad {
				return err
			}
			return c.printChecked(docs, append(problems, warnings...))
		},
	}
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON schema of the files and end")
	return cmd
}

// printChecked prints what a check found. It fails if a problem is more than a warning.
func (c platformVerbs) printChecked(docs []catalog.Document, problems catalog.Problems) error {
	wrong := problems.Wrong()
	if c.Output == "json" || c.Output == "yaml" {
		if err := c.Encode(kit.NewList("ProblemList", problems)); err != nil {
			return err
		}
		if len(wrong) > 0 {
			return &kit.Error{Exit: kit.ExitFailed, What: fmt.Sprintf("%d problems", len(wrong))}
		}
	} else if len(wrong) > 0 {
		return &kit.Error{Exit: kit.ExitFailed, Err: wrong}
	}
	if c.Output == "table" || c.Output == "wide" || c.Output == "name" {
		for _, d := range docs {
			fmt.Fprintln(c.Out, kit.Plain(d.Name()))
		}
		for _, p := range problems {
			c.Remark("%v", p)
		}
	}
	c.Remark("%d good", len(docs))
	return nil
}
