package agent

import (
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/weightsets"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/forkserver"
)

// ConfineMode is whether engines run confined, see package confine.
type ConfineMode string

// The modes. Auto confines where the kernel can.
const (
	ConfineOff  ConfineMode = "off"
	ConfineAuto ConfineMode = "auto"
)

// confinement makes the plans of engines. Each model has a folder of its own, with the
// home of its engines, and the user that owns that home.
type confinement struct {
	data string // of thaw: an engine reads only what is named of it
	dir  string // of the models' folders
	mu   sync.Mutex
}

// newConfinement returns nil where engines are not confined.
func newConfinement(mode ConfineMode, data, dir string, log *slog.Logger) *confinement {
	switch why := confine.Unavailable(); {
	case mode != ConfineAuto:
		return nil
	case why != "":
		log.Warn("engines are not confined: what a checkpoint makes its engine do, it does with the rights of thaw", "why", why)
		return nil
	case os.Geteuid() == 0 && !confine.OwnUsers():
		log.Info("engines run confined under the user of thaw: this container lacks the rights to give them users of their own")
	}
	data, dir = absolute(data), absolute(dir)
	return &confinement{data: data, dir: dir}
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return path
}

func (c *confinement) adapterDir(name functions.Name, replica string) string {
	return filepath.Join(c.dir, name.Team, name.Name, "adapters-"+replica)
}

// plan is what an engine may do. It changes the command's environment so that what the
// engine writes goes where it may.
func (c *confinement) plan(name functions.Name, replica string, cmd *engine.Command, r engine.Request) (*confine.Plan, error) {
	home, adapters := filepath.Join(c.dir, name.Team, name.Name, "home"), c.adapterDir(name, replica)
	user, err := c.userOf(home)
	if err == nil {
		err = os.MkdirAll(adapters, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("confine: %w", err)
	}
	p := &confine.Plan{User: user, Read: append(confine.System(), adapters), Write: []string{home}}
	paths := []string{cmd.Scratch, r.Cache, strings.TrimPrefix(r.Weights, "unix:")}
	p.Write = append(p.Write, slices.DeleteFunc(paths, func(path string) bool { return path == "" })...)
	p.Write = append(p.Write, r.CacheShared...) // not what links in the cache lead to: the engine makes such links
	if files := sourceFiles(r); files != nil {
		for _, file := range files {
			p.Read = append(p.Read, c.outside(file)...)
		}
	} else if r.Path != "" {
		p.Read = append(p.Read, c.checkpoint(r.Path)...)
	}
	for _, path := range slices.Concat(engine.ProgramPaths(cmd.Argv[0]), engine.NamedPaths(r.Spec.Args, r.Spec.Env)) {
		p.Read = append(p.Read, c.outside(path)...)
	}
	for _, dir := range engine.ScriptFolders(r.Spec.Args) {
		p.Read = append(p.Read, c.outside(dir)...)
	}
	if cmd.Engine == functions.EngineCommand && cmd.Dir != "" {
		p.Read = append(p.Read, c.entries(absolute(cmd.Dir))...)
	}
	c.setEnv(cmd, r, home)
	return p, nil
}

// userOf makes a home, if there is none, and returns its owner: the user of all engines of
// the model. 0 keeps the user of this process.
func (c *confinement) userOf(home string) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := os.MkdirAll(filepath.Join(home, "tmp"), 0o700); err != nil || !confine.OwnUsers() {
		return 0, err
	}
	if user := owner(home); confine.IsUser(user) {
		return user, nil
	}
	// Another thaw on this machine begins elsewhere in the range.
	h := fnv.New32a()
	h.Write([]byte(c.dir))
	user := confine.FirstUser + int(h.Sum32()%(1<<16))<<12
	homes, _ := filepath.Glob(filepath.Join(c.dir, "*", "*", "home")) // no error: the pattern is valid
	for _, other := range homes {
		if u := owner(other); confine.IsUser(u) {
			user = max(user, u)
		}
	}
	user++
	return user, os.Chown(home, user, user)
}

// owner is the user of a path; 0 if it is not known.
func owner(path string) int {
	st, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return int(sys.Uid)
}

// outside returns a path unless it would show data of thaw or a whole home folder.
func (c *confinement) outside(path string) []string {
	path = filepath.Clean(path)
	home, _ := os.UserHomeDir()
	if path == "/" || path == home || path == "/root" || filepath.Dir(path) == "/home" || path == "/tmp" || isBelow(path, c.data) ||
		isBelow(c.data, path) {
		return nil
	}
	return []string{path}
}

// entries is a folder or, if it is one that outside refuses, what it has at its top but
// for hidden entries and the data of thaw.
func (c *confinement) entries(dir string) []string {
	if paths := c.outside(dir); paths != nil || isBelow(dir, c.data) {
		return paths
	}
	list, _ := os.ReadDir(dir)
	var paths []string
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), ".") {
			paths = append(paths, c.outside(filepath.Join(dir, e.Name()))...)
		}
	}
	return paths
}

// isBelow reports whether path is dir or below it.
func isBelow(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// checkpoint is a checkpoint with the files that links in it lead to, but for data of thaw.
func (c *confinement) checkpoint(path string) []string {
	to := absolute(path)
	if isBelow(c.data, to) {
		return c.entries(to)
	}
	paths := []string{path, to}
	for _, file := range engine.LinkedFiles(to) {
		paths = append(paths, c.outside(file)...)
	}
	return paths
}

// sourceFiles are the files of a source that is one file of a folder, with its shards: the
// engine reads them and nothing else of that folder. nil for other sources.
func sourceFiles(r engine.Request) (files []string) {
	base := filepath.Base(r.Spec.Source)
	if strings.Contains(r.Spec.Source, "://") && !strings.HasPrefix(r.Spec.Source, "file://") || r.Path == "" || r.Spec.Source == "" {
		return nil
	}
	if fi, err := os.Stat(filepath.Join(r.Path, base)); err != nil || !fi.Mode().IsRegular() || filepath.Base(r.Path) == base {
		return nil
	}
	for _, name := range weightsets.Siblings(base) {
		file := filepath.Join(r.Path, name)
		files = append(files, file)
		if to := absolute(file); to != file {
			files = append(files, to)
		}
	}
	return files
}

// setEnv points the caches of an engine to its home, but for those that its model file
// sets. HOME itself changes only for engines that no warm interpreter forks: that one has
// read it.
func (c *confinement) setEnv(cmd *engine.Command, r engine.Request, home string) {
	// The user id that the engine gets has no entry in the system's list of users.
	env := []string{"USER=thaw", "LOGNAME=thaw", "TORCHINDUCTOR_CACHE_DIR=" + filepath.Join(home, "torchinductor")}
	if len(r.GPUs) > 0 {
		env = append(env, "CUDA_CACHE_PATH="+filepath.Join(home, "cuda"), "TRITON_HOME="+home, "FLASHINFER_WORKSPACE_BASE="+home)
	}
	if forkserver.ImportList(string(cmd.Engine)) == "" {
		env = append(env, "HOME="+home)
	} else if r.Cache == "" {
		env = append(env, "VLLM_CACHE_ROOT="+filepath.Join(home, "vllm"))
	}
	if cmd.Scratch == "" {
		env = append(env, "TMPDIR="+filepath.Join(home, "tmp"))
	}
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if _, set := r.Spec.Env[name]; set {
			continue
		}
		cmd.Env = slices.DeleteFunc(cmd.Env, func(have string) bool { return strings.HasPrefix(have, name+"=") })
		cmd.Env = append(cmd.Env, kv)
	}
}
