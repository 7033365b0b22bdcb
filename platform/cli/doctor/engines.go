package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/forkserver"
)

// wanted are the models that a machine is to serve, by engine. What none of them
// needs may be absent.
type wanted struct {
	by    map[functions.Engine][]string // names of models
	specs map[string]functions.ModelSpec
	dirs  map[string]string
}

// wantedModels reads the catalogue from the folder of functions, if one is named, and
// from those deployed to the data folder; and what a server on this machine has.
func (d doctor) wantedModels(ctx context.Context, folder string, add adder) wanted {
	w := wanted{map[functions.Engine][]string{}, map[string]functions.ModelSpec{}, map[string]string{}}
	note := func(name string, e functions.Engine) {
		if !slices.Contains(w.by[e], name) {
			w.by[e] = append(w.by[e], name)
		}
	}
	folder = cmp.Or(folder, d.Getenv("THAW_FUNCTIONS"))
	deployed := ""
	if dirs, err := d.DataFolders(); err == nil {
		for _, dir := range slices.Backward(dirs) {
			if info, err := os.Stat(filepath.Join(dir, "functions")); err == nil && info.IsDir() {
				deployed = filepath.Join(dir, "functions")
			}
		}
	}
	if folder != "" || deployed != "" {
		cat, err := catalog.Open(catalog.Options{Folder: folder, Deployed: deployed})
		if err != nil {
			add("functions", statusFail, "", "%v", err)
		} else {
			for _, p := range cat.Problems() {
				status := statusFail
				if p.Warning {
					status = statusWarn
				}
				add("functions", status, "thaw check names the line", "%s", p.Error())
			}
			for _, m := range cat.Models() {
				name := m.FullName().String()
				note(name, m.Spec.Engine)
				w.specs[name], w.dirs[name] = m.Spec, m.Dir
			}
		}
	}
	cl, err := d.Client()
	if err != nil {
		return w
	}
	defer cl.Close()
	if !d.IsLocal(cl.Server()) {
		return w // what it serves, it serves elsewhere
	}
	ctx, cancel := context.WithTimeout(ctx, d.QueryTimeout)
	defer cancel()
	if list, err := cl.Functions(ctx); err == nil {
		for _, f := range list {
			note(f.Name, f.Engine)
		}
	}
	return w
}

// neededBy lists the models that need an engine.
func (w wanted) neededBy(e functions.Engine) string {
	names := w.by[e]
	if len(names) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

// examineEngines checks each engine: whether it is installed, its version and known
// vulnerabilities. A missing engine is a failure if a model needs it.
func (d doctor) examineEngines(ctx context.Context, w wanted, add adder) {
	exe, _ := os.Executable()
	programs := engine.Programs{Thaw: exe, Environ: func() []string {
		env := os.Environ()
		for _, name := range []string{"EMBER", "VLLM", "SGLANG", "LLAMACPP"} {
			env = append(env, "THAW_ENGINE_"+name+"="+d.Getenv("THAW_ENGINE_"+name))
		}
		return env
	}}
	for _, s := range engine.Table() {
		check := "engine " + string(s.Engine)
		needed := w.neededBy(s.Engine)
		broken := statusWarn
		if needed != "" {
			broken = statusFail
		}
		switch s.Engine {
		case functions.EngineEmber:
			if d.Embedded("ember") {
				add(check, statusOK, "", "in this program")
				continue
			}
		case functions.EngineCommand:
			d.examineCommands(w, add)
			continue
		}
		in, err := programs.Find(ctx, s.Engine)
		switch {
		case errors.Is(err, engine.ErrNotInstalled) && needed == "":
			add(check, statusOK, "", "not installed; models of it cannot be served here")
			continue
		case errors.Is(err, engine.ErrNotInstalled):
			add(check, statusFail, fmt.Sprintf("install it, or set THAW_ENGINE_%s to its program", strings.ToUpper(string(s.Engine))),
				"not installed, and needed by %s", needed)
			continue
		case err != nil:
			// A program named by the variable is expected to work.
			variable := "THAW_ENGINE_" + strings.ToUpper(string(s.Engine))
			add(check, statusFail, "mend "+variable, "%v", err)
			continue
		}
		version := cmp.Or(in.Version, "of unknown version")
		switch {
		case s.Within(in.Version):
			add(check, statusOK, "", "%s, %s, a version that was tested", in.Program, version)
		case s.Tested == "":
			add(check, statusWarn, "", "%s, %s; %s", in.Program, version, s.Note)
		default:
			add(check, statusWarn, "", "%s, %s; tested was %s", in.Program, version, s.Tested)
		}
		for _, h := range s.OpenVulnerabilities(in) {
			what, hint := "its version", "no version of it is without"
			if h.Package != "" {
				what = h.Package + " " + in.Others[h.Package]
			}
			if h.Below != "" {
				hint = "upgrade to " + h.Below + " or later"
			}
			add(check, statusWarn, hint, "%s has a known hole: %s", what, h.Feature)
		}
		d.examinePython(check, broken, s.Engine, in.Program, add)
	}
}

// examinePython looks at what makes the start of a Python engine long or
// impossible.
func (d doctor) examinePython(check, broken string, e functions.Engine, program string, add adder) {
	env, err := forkserver.FindEnvironment(program)
	if errors.Is(err, forkserver.ErrNoScript) {
		return
	}
	if err != nil {
		add(check, broken, "install it anew", "%v", err)
		return
	}
	row := forkserver.ImportList(string(e))
	if row == "" {
		return
	}
	if have, of := env.Bytecode(forkserver.SamplePackages(row)...); of > 0 && have < of {
		hint := strings.Join(env.CompileCommand(), " ")
		if !env.Writable() {
			hint = "as the owner of that folder: " + hint
		}
		add(check, statusWarn, hint, "of %d modules looked at, %d have no bytecode: each start compiles them anew, which takes a minute or more",
			of, of-have)
	} else if of > 0 {
		add(check, statusOK, "", "its bytecode is there")
	}
}

// examineCommands looks for the programs of models that bring their own.
func (d doctor) examineCommands(w wanted, add adder) {
	for _, name := range w.by[functions.EngineCommand] {
		spec, ok := w.specs[name]
		if !ok || len(spec.Args) == 0 {
			continue
		}
		program := spec.Args[0]
		if strings.ContainsRune(program, '/') && !filepath.IsAbs(program) {
			program = filepath.Join(w.dirs[name], program)
		}
		if found, err := exec.LookPath(program); err != nil {
			add("engine command", statusFail, "", "%s, of %s: %v", program, name, kit.RootCause(err))
		} else {
			add("engine command", statusOK, "", "%s, of %s", found, name)
		}
	}
}

// examineStart looks at what a start needs beside its engine.
func (d doctor) examineStart(w wanted, add adder) {
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err != nil {
		add("ports", statusFail, "engines listen on loopback", "%v", err)
	} else {
		add("ports", statusOK, "", "loopback gives them")
		l.Close()
	}
	if err := kit.CheckFUSE(); err != nil {
		add("fuse", statusOK, "", "not to be had (%v): engines start when their checkpoints are whole", err)
	} else {
		add("fuse", statusOK, "", "engines start while their checkpoints arrive")
	}
	gpus := 0
	if d.GPUs != nil {
		if list, _, err := d.GPUs(); err == nil {
			gpus = len(list)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.specs)) {
		spec := w.specs[name]
		if spec.Resources.GPUs > gpus {
			add("GPUs", statusWarn, "it needs another node, or thaw serve --gpus N where the driver cannot be asked", "%s wants %d, and here are %d",
				name, spec.Resources.GPUs, gpus)
		}
	}
}
