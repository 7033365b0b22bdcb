package catalog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/durable"
)

// Checked is what Put would do with a document: Created, if it is new. Warnings are about
// what a Router or a Composition names.
type Checked struct {
	Document
	Created  bool
	Warnings Problems
}

// Check returns what Put would do with a document, without doing it. The functions beside
// it, which are to be deployed before it, count as there.
func (c *Catalog) Check(name functions.Name, data []byte, beside ...functions.Name) (Checked, error) {
	docs, err := Reader{Plain: c.o.Plain}.Decode(name.String(), data)
	if err != nil {
		return Checked{}, err
	}
	if len(docs) != 1 || docs[0].Team != nil {
		return Checked{}, Problems{{Message: "exactly one Model, Router, Remote or Composition is wanted",
			Hint: "team files belong in the --functions folder"}}
	}
	out := Checked{Document: docs[0]}
	var problems Problems
	if out.FullName() != name {
		problems = append(problems,
			Problem{Path: "metadata.name", Message: fmt.Sprintf("the document is about %s, the path about %s", out.FullName(), name)})
	}
	problems = append(problems, out.relativeFiles()...)
	p := c.now()
	if out.Router != nil || out.Composition != nil {
		with := maps.Clone(p.docs)
		for _, n := range beside {
			if _, there := with[n.String()]; !there {
				with[n.String()] = Document{Model: &functions.Model{Metadata: functions.Metadata{Name: n.Name, Namespace: n.Team}}, incomplete: true}
			}
		}
		with[out.key()] = out.Document
		for _, x := range checkTargets(with).RequireTargets() {
			switch {
			case x.File != out.File:
			case x.Warning:
				out.Warnings = append(out.Warnings, x)
			default:
				if x.Unknown {
					x.Hint = strings.TrimSuffix("deploy it before, or together with this; "+x.Hint, "; ")
				}
				problems = append(problems, x)
			}
		}
	}
	if len(problems) > 0 {
		return Checked{}, problems
	}
	at, exists := p.from[name.String()]
	is := p.docs[name.String()]
	switch {
	case exists && at != c.path(name):
		return Checked{}, fmt.Errorf("%s: %w by %s: edit it there, the server reads the change, or rename this one", name, ErrConflict,
			is.origin())
	case exists && is.Kind() != out.Kind():
		return Checked{}, fmt.Errorf("%s: %w by a deployed %s, and this is a %s: remove that first, or rename this one", name, ErrConflict,
			is.Kind(), out.Kind())
	}
	out.forgetPlace()
	out.Created = !exists
	return out, nil
}

// forgetPlace takes away the folder and file that the document was read from.
func (d *Document) forgetPlace() {
	switch {
	case d.Model != nil:
		d.Model.Dir, d.Model.Origin = "", ""
	case d.Router != nil:
		d.Router.Dir, d.Router.Origin = "", ""
	case d.Remote != nil:
		d.Remote.Dir, d.Remote.Origin = "", ""
	case d.Composition != nil:
		d.Composition.Origin = ""
	}
}

// relativeFiles lists the paths that would count from the folder of a file.
func (d *Document) relativeFiles() (problems Problems) {
	relative := func(path, noun, source string) {
		if source != "" && !strings.Contains(source, "://") && !filepath.IsAbs(source) {
			problems = append(problems,
				Problem{Path: path, Message: "a relative " + noun + " has no folder to count from here", Hint: "thaw deploy -f FILE makes it absolute"})
		}
	}
	switch {
	case d.Model != nil:
		relative("spec.source", "source", d.Model.Spec.Source)
		for i, a := range d.Model.Spec.Adapters {
			relative(fmt.Sprintf("spec.adapters[%d].source", i), "source", a.Source)
		}
		problems = append(problems, checkFolder(&d.Model.Spec)...)
	case d.Remote != nil:
		relative("spec.keyFrom.file", "file", d.Remote.Spec.KeyFrom.File)
	case d.Router != nil:
		for i, x := range d.Router.Spec.Intents.List {
			if x.ExamplesFrom != "" {
				problems = append(problems, Problem{
					Path:    fmt.Sprintf("spec.intents.list[%d].examplesFrom", i),
					Message: "a deployed document has its examples in itself",
					Hint:    "thaw deploy -f FILE puts them there",
				})
			}
		}
	}
	return problems
}

// checkFolder checks the folder that relative arguments of a deployed command engine count from.
func checkFolder(s *functions.ModelSpec) (problems Problems) {
	if st, err := os.Stat(s.Folder); s.Folder != "" && (err != nil || !st.IsDir()) {
		return Problems{{Path: "spec.folder", Message: fmt.Sprintf("the server's machine has no folder %q", functions.Clip(s.Folder)),
			Hint: "put it there under this path, or deploy on the server's machine"}}
	}
	if i := s.RelativeArg(); i >= 0 && s.Folder == "" {
		problems = append(problems,
			Problem{Path: fmt.Sprintf("spec.args[%d]", i),
				Message: fmt.Sprintf("%q is relative, and what is deployed has no folder to count from", functions.Clip(s.Args[i])),
				Hint:    "thaw deploy -f FILE fills in spec.folder; or write the whole path of the server's machine"})
	}
	return problems
}

// path is where a deployed model is kept. Labels hold no dot, so no two names
// share a file.
func (c *Catalog) path(name functions.Name) string {
	return filepath.Join(c.o.Deployed, name.Team+"."+name.Name+".yaml")
}

// Put stores one Model, Router, Remote or Composition under DATA/functions. data is
// YAML or JSON; name must be the document's own. When it returns, the file is
// whole on disk and every Watch has delivered it; so a watcher must not call it.
// Errors: Problems, ErrConflict, ErrReadOnly, or of the disk.
func (c *Catalog) Put(name functions.Name, data []byte) (created bool, err error) {
	if c.o.Deployed == "" {
		return false, ErrReadOnly
	}
	if created, err = c.put(name, data); err == nil {
		c.waitDelivered()
	}
	return created, err
}

func (c *Catalog) put(name functions.Name, data []byte) (created bool, err error) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	checked, err := c.Check(name, data)
	if err != nil {
		return false, err
	}
	out, err := EncodeYAML(checked.Value())
	if err != nil {
		return false, err
	}
	if len(out) > MaxFile {
		return false, Problems{{
			Message: "the document is larger than " + functions.Bytes(MaxFile).Human() + " as a file",
			Hint:    "put it into the --functions folder, with its examples in a file of their own: examplesFrom",
		}}
	}
	if old, err := os.ReadFile(c.path(name)); err == nil && bytes.Equal(old, out) {
		return false, nil
	}
	if err := durable.WriteFile(c.path(name), out, 0o600); err != nil {
		return false, err
	}
	c.refresh(c.path(name))
	return checked.Created, nil
}

// Delete removes a deployed function. Errors: ErrNotFound, ErrConflict for one of
// the user's folder, or of the disk. Like Put, it returns when every Watch has delivered it.
func (c *Catalog) Delete(name functions.Name) error {
	err := c.remove(name)
	if err == nil {
		c.waitDelivered()
	}
	return err
}

func (c *Catalog) remove(name functions.Name) error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	p := c.now()
	at, exists := p.from[name.String()]
	switch {
	case !exists:
		return fmt.Errorf("%s: %w", name, ErrNotFound)
	case c.o.Deployed == "" || at != c.path(name):
		return fmt.Errorf("%s: %w by %s, which belongs to you and is never written: remove it there", name, ErrConflict,
			p.docs[name.String()].origin())
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := durable.SyncDir(filepath.Dir(at)); err != nil {
		return err
	}
	delete(c.files, at)
	c.assemble(nil)
	return nil
}

// refresh reads one file that was just written. The caller has the turn.
func (c *Catalog) refresh(path string) {
	f := new(file)
	if info, err := os.Stat(path); err == nil {
		f.lastSeen = versionOf(path, info)
		c.read(f, path, f.lastSeen)
	}
	c.files[path] = f
	c.assemble(nil)
}
