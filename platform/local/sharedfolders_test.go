package local

import (
	"slices"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

type fewModels struct{ models []*functions.Model }

func (f *fewModels) Models() []*functions.Model { return f.models }
func (*fewModels) Teams() []*functions.Team     { return nil }

// TestSharedFolders: only folders that models or adapters name are shared, with the files
// that any of them needs. A folder removed from the catalog is no longer shared.
func TestSharedFolders(t *testing.T) {
	model := func(dir, src string, files []string, adapters ...functions.Adapter) *functions.Model {
		m := functions.NewModel()
		m.Dir, m.Spec.Source, m.Spec.Files, m.Spec.Adapters = dir, src, files, adapters
		return m
	}
	c := &fewModels{[]*functions.Model{
		model("/m", "./a", []string{"*.py"}, functions.Adapter{Name: "x", Source: "lora", Files: []string{"y"}}),
		model("/m", "file:///m/a", []string{"b", "*.py"}),
		model("/m", "az://acct/c/p", nil, functions.Adapter{Name: "x", Source: "/abs/lora"}),
		model("", "rel", nil),
		model("/m", "", nil),
	}}
	l := &sharedFolders{catalog: c}
	for folder, want := range map[string][]string{"/m/a": {"*.py", "b"}, "/m/lora": {"y"}, "/abs/lora": nil} {
		if files, ok := l.folder(folder); !ok || !slices.Equal(files, want) {
			t.Errorf("%s: %q, %t", folder, files, ok)
		}
	}
	for _, other := range []string{"/m", "/", "", "/m/a/", "/m/a/../a", "rel", "/m/rel", "/etc"} {
		if _, ok := l.folder(other); ok {
			t.Errorf("%q is lent", other)
		}
	}
	c.models = c.models[1:2]
	l.invalidate()
	if _, ok := l.folder("/m/lora"); ok {
		t.Error("lent after its model was taken out")
	}
	if files, ok := l.folder("/m/a"); !ok || len(files) != 2 {
		t.Error(files, ok)
	}
}
