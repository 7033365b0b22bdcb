// Package files finds, decodes and checks the definition files (YAML) that verbs such as deploy are
// given, and makes those to be deployed independent of their folder; it sends nothing.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// Read decodes every document of files and folders (their .yaml, .yml and .json
// files); - is stdin, where a relative source counts from the working folder. The error has all
// problems of all files; warnings are what the documents work
// with all the same. whole: they are all there is, so that a Router that names another
// function is wrong.
func Read(stdin io.Reader, reader catalog.Reader, paths []string, whole bool) (docs []catalog.Document, warnings catalog.Problems,
	err error) {
	files, err := listFiles(paths)
	if err != nil {
		return nil, nil, err
	}
	var problems, empty catalog.Problems
	allNamed := true
	for _, f := range files {
		data, err := kit.ReadBounded(stdin, f, catalog.MaxFile)
		if err != nil && f != fromStdin {
			problems = append(problems, catalog.Problem{File: f, Message: "cannot be read: " + kit.RootCause(err).Error()})
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if f == fromStdin {
			f = "stdin"
		}
		got, named, err := reader.Survey(f, data)
		if p, bad := errors.AsType[catalog.Problems](err); bad {
			problems = append(problems, p...)
		}
		if err == nil && len(got) == 0 {
			empty = append(empty,
				catalog.Problem{File: f, Message: "the file has no object", Hint: "an object begins with apiVersion: thaw.dev/v1 and its kind",
					Warning: true})
		}
		docs, allNamed = append(docs, got...), allNamed && named
	}
	problems = append(problems, catalog.Duplicates(docs)...)
	targets := catalog.CheckTargets(docs)
	if whole && allNamed {
		targets = targets.RequireTargets()
	}
	if problems = append(problems, targets.Wrong()...); len(problems) > 0 {
		return nil, nil, problems
	}
	return docs, append(empty, targets...), nil
}

// fromStdin stands for standard input among paths.
const fromStdin = "-"

func HasFolder(paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool {
		info, err := os.Stat(p)
		return err == nil && info.IsDir()
	})
}

// listFiles lists the files of paths, and those of functions in folders.
func listFiles(paths []string) ([]string, error) {
	var files []string
	for i, p := range paths {
		if p == fromStdin {
			if slices.Contains(paths[:i], p) {
				return nil, kit.Usage("", "stdin can be read once: there is one - too many")
			}
			files = append(files, p)
			continue
		}
		if p == "" {
			return nil, kit.Usage("-f FILE", "the name of a file is empty")
		}
		info, err := os.Stat(p)
		if errors.Is(err, fs.ErrNotExist) {
			e := &kit.Error{Exit: kit.ExitNotFound, What: "there is no file " + p}
			if strings.Contains(p, "://") {
				e.Hint = "files of this machine are read: curl URL | thaw deploy -f -"
			} else if strings.HasPrefix(p, "~") {
				e.Hint = "the shell did not fill in ~: write the whole path"
			}
			return nil, e
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
			if !e.IsDir() && catalog.IsFunctions(p, e.Name()) {
				files, found = append(files, filepath.Join(p, e.Name())), true
			}
		}
		if !found {
			return nil, &kit.Error{Exit: kit.ExitNotFound, What: "there is no .yaml, .yml or .json file of functions in " + p}
		}
	}
	return files, nil
}

// ReadModels decodes the models of files and folders. All problems of all files
// are reported at once. It is for clusters, which have models alone: a team among them is
// refused with teamHint, as are other kinds and an empty list.
// Models without a namespace get the given one, or default.
func ReadModels(stdin io.Reader, paths []string, namespace, teamHint string) ([]*functions.Model, error) {
	docs, _, err := Read(stdin, catalog.Reader{Namespace: namespace}, paths, false)
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

// TargetsAmong are the documents of docs that d names, if it is a Router or a Composition.
func TargetsAmong(docs []catalog.Document, d catalog.Document) (names []functions.Name) {
	targets, team := d.Targets(), d.FullName().Team
	for _, x := range docs {
		if slices.ContainsFunc(targets, func(target string) bool {
			n, err := functions.ParseName(target, team)
			return err == nil && n.WithoutAdapter() == x.FullName()
		}) {
			names = append(names, x.FullName())
		}
	}
	return names
}

// detach makes a document independent of the folder of its file: paths become absolute, a
// command engine with relative arguments names the folder that it runs in, examples of intents become part of the document.
func detach(d catalog.Document) error {
	var paths []*string
	dir := ""
	switch {
	case d.Model != nil:
		if dir = d.Model.Dir; d.Model.Spec.Folder == "" && countsFrom(dir, &d.Model.Spec) {
			abs, err := filepath.Abs(dir)
			if err != nil {
				return err
			}
			d.Model.Spec.Folder = abs
		}
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

// countsFrom reports whether an argument of a command engine counts from dir: it says so, or
// is the name of a file there.
func countsFrom(dir string, s *functions.ModelSpec) bool {
	return s.RelativeArg() >= 0 || s.Engine == functions.EngineCommand && slices.ContainsFunc(s.Args, func(arg string) bool {
		st, err := os.Stat(filepath.Join(dir, arg))
		return filepath.IsLocal(arg) && err == nil && st.Mode().IsRegular()
	})
}

// ReadDeployable reads what deploy sends: all kinds but teams, Routers and then Compositions
// last, so that what they name is there before them. Each is detached from its folder.
func ReadDeployable(stdin io.Reader, paths []string) (docs []catalog.Document, files [][]byte, err error) {
	docs, _, err = Read(stdin, catalog.Reader{Examples: true}, paths, false)
	if err != nil {
		return nil, nil, err
	}
	if len(docs) == 0 {
		return nil, nil, kit.Usage("an object begins with apiVersion: thaw.dev/v1 and its kind; a Team is a file of the folder --functions",
			"there is no function in %s", strings.Replace(strings.Join(paths, ", "), fromStdin, "the standard input", 1))
	}
	rank := func(d catalog.Document) int {
		return slices.Index([]string{functions.KindRouter, functions.KindComposition}, d.Kind())
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
			return nil, nil, &kit.Error{Exit: kit.ExitUsage, What: at + ": with the examples of its intents the router is too large to be sent",
				Err:  err,
				Hint: "put its file and the examples into the server's --functions folder"}
		}
		files = append(files, b)
	}
	return docs, files, nil
}
