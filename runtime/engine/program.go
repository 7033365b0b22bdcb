package engine

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/weightsets"
)

func checkCommand(r Request) error {
	if len(r.Spec.Args) == 0 {
		return errors.New("engine command: args is empty; it is the whole argv, with {port}, {model} and {name} filled in")
	}
	port, model := false, false
	look := func(s string) {
		port = port || strings.Contains(s, "{port}")
		model = model || strings.Contains(s, "{model}")
	}
	for _, a := range r.Spec.Args {
		if strings.Contains(a, keyWord) {
			return errors.New("engine command: args: every user of the machine could read {key} there; put it into env")
		}
		look(a)
	}
	for _, v := range r.Spec.Env {
		look(v)
	}
	switch {
	case !port:
		return errors.New("engine command: {port} is in neither args nor env, so it would listen on another port")
	case model && r.Path == "":
		return errors.New("engine command: {model} is used, but the model has no source")
	}
	return nil
}

func (p Programs) program(e functions.Engine, row row, environ []string) (string, error) {
	if v := lookupEnv(environ, row.override); v != "" {
		path, err := p.look(v)
		if err != nil {
			return "", fmt.Errorf("engine %s: %s=%s: %s", e, row.override, v, lookPathError(err))
		}
		return path, nil
	}
	if e == functions.EngineEmber {
		if p.Thaw == "" {
			return "", errors.New("engine ember: the path of the thaw program is not known; set THAW_ENGINE_EMBER")
		}
		return p.Thaw, nil
	}
	path, err := p.look(row.program)
	if err != nil {
		return "", fmt.Errorf("engine %s: program %q not found on PATH; install it or set %s to its path", e, row.program, row.override)
	}
	return path, nil
}

// ExplainExec is the error of a program that could not be executed, with what is wrong and what
// helps: the kernel calls a file missing whose interpreter or loader is.
func ExplainExec(program string, err error) string {
	text := err.Error()
	is := func(e syscall.Errno) bool { return strings.HasSuffix(text, "exec "+program+": "+e.Error()) }
	words, _ := readShebang(program)
	loader, built := readELF(program)
	switch {
	case is(syscall.ENOENT) && len(words) > 0:
		if strings.HasSuffix(words[len(words)-1], "\r") {
			return text + ": its first line has the line end of Windows (dos2unix " + program + ")"
		}
		return text + ": its first line names the interpreter " + words[0] + ", which is not there (install it, or change that line; " +
			"an environment that was moved is made anew)"
	case is(syscall.ENOENT) && loader != "":
		return text + ": it is built for " + built + " with the loader " + loader + ", which is not there (take a build for this system, " +
			runtime.GOARCH + "; glibc and musl have loaders of their own)"
	case is(syscall.ENOEXEC) && built != "":
		return text + ": it is built for " + built + ", and this machine is " + runtime.GOARCH + " (take a build for this one)"
	case is(syscall.EACCES) && len(words) > 0:
		return NameConfinement(text + ": its interpreter " + words[0] + " may not be executed, or a file system is mounted noexec")
	case is(syscall.EACCES):
		return NameConfinement(text + ": its file system may be mounted noexec")
	}
	return advise(text)
}

// readELF returns the loader that a program needs and the processor it is built for; "" for what is no ELF file.
func readELF(path string) (loader, built string) {
	binary, err := elf.Open(path)
	if err != nil {
		return "", ""
	}
	defer binary.Close()
	for _, part := range binary.Progs {
		if part.Type == elf.PT_INTERP {
			name, _ := io.ReadAll(io.LimitReader(part.Open(), 4096))
			loader = strings.TrimRight(string(name), "\x00")
		}
	}
	return loader, strings.TrimPrefix(binary.Machine.String(), "EM_")
}

func (p Programs) look(name string) (string, error) {
	if p.Look != nil {
		return p.Look(name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// FreePort returns a free loopback port. If another process binds it before the
// engine, the engine exits with PortTaken, and the start is tried again.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("no free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// maxListed bounds the files of a folder that are looked at.
const maxListed = 20_000

// findGGUF is the file for llama.cpp: path itself, or the file or first shard of the one
// set of weights in a folder that the pattern means.
func findGGUF(path, pattern string) (string, error) {
	if st, err := os.Stat(path); err == nil && !st.IsDir() {
		return path, nil
	}
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to
	}
	var files []weightsets.File
	listed := 0
	err := filepath.WalkDir(path, func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if listed++; listed > maxListed {
			return fmt.Errorf("more than %d files are in %s", maxListed, path)
		}
		if e.IsDir() && strings.HasPrefix(e.Name(), ".") && at != path {
			return fs.SkipDir
		}
		name, err := filepath.Rel(path, at)
		if err != nil || e.IsDir() || !weightsets.IsGGUF(name) {
			return err
		}
		st, err := os.Stat(at)
		if err != nil {
			return err
		}
		files = append(files, weightsets.File{Name: filepath.ToSlash(name), Size: st.Size()})
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("engine llamacpp: %w", err)
	}
	all := weightsets.Find(files)
	switch chosen := weightsets.Choose(all, pattern); {
	case len(chosen) == 1:
		return filepath.Join(path, filepath.FromSlash(chosen[0].Files[0].Name)), nil
	case len(chosen) > 1:
		return "", fmt.Errorf("engine llamacpp: %s holds %d sets of weights: %s; choose one with spec.weights", path, len(chosen),
			weightsets.List(chosen))
	case len(all) > 0:
		return "", fmt.Errorf("engine llamacpp: %q matches none of the .gguf files in %s: %s", pattern, path, weightsets.List(all))
	}
	return "", fmt.Errorf("engine llamacpp: no .gguf file in %s", path)
}

// projectorFlags are the flags of llama.cpp that say which projector there is, if any.
var projectorFlags = []string{"--mmproj", "-mm", "--mmproj-url", "-mmu", "--mmproj-auto", "--no-mmproj", "--no-mmproj-auto"}

// findProjector returns the file that makes images readable for a model of a folder: the
// smallest one beside the model, else at the top of the folder; "" without any.
func findProjector(folder, model string) (found string) {
	if folder == model {
		return ""
	}
	for _, dir := range []string{filepath.Dir(model), folder} {
		entries, _ := os.ReadDir(dir)
		size := int64(math.MaxInt64)
		for _, e := range entries {
			if !weightsets.IsProjector(e.Name()) {
				continue
			}
			at := filepath.Join(dir, e.Name())
			if st, err := os.Stat(at); err == nil && st.Mode().IsRegular() && st.Size() < size {
				found, size = at, st.Size()
			}
		}
		if found != "" {
			break
		}
	}
	return found
}

func lookPathError(err error) string {
	if ee, ok := errors.AsType[*exec.Error](err); ok {
		err = ee.Err
	}
	return err.Error()
}
