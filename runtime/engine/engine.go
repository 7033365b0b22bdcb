package engine

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/thaw-dev/thaw/functions"
)

type Programs struct {
	// Thaw is the path of the thaw binary, which includes ember.
	Thaw string
	// Look finds a program by name or validates a path; nil is exec.LookPath.
	Look func(string) (string, error)
	// Environ is the environment that engines inherit, with the THAW_ENGINE_…
	// variables; nil is os.Environ.
	Environ func() []string
	// Host describes the machine; nil is ThisHost.
	Host func() Host
	// RefuseVulnerable refuses an installation below the version that fixes a known
	// vulnerability.
	RefuseVulnerable bool
}

// Request is one engine to prepare.
type Request struct {
	Spec functions.ModelSpec
	Name string // the model name it serves
	Path string // the checkpoint's folder or file; may be empty for command
	Dir  string // folder of the model file, for relative programs of command
	Port int    // see FreePort
	GPUs []int  // indices the scheduler chose
	// GPUMemory is the size of each such GPU, 0 if unknown; the share of it that an
	// engine may use is computed from the model's gpuMemory.
	GPUMemory functions.Bytes
	// GPUFree is the free memory of the GPU that has the least, 0 if unknown.
	GPUFree functions.Bytes
	// Streamed reports that the files at Path are still arriving, and reads wait for
	// their bytes. The engine must have read them when it is READY.
	Streamed bool
	// Weights is the server of the weight files, which the folder lacks, as unix:PATH.
	// Only ember supports it; "" for none.
	Weights string
	// Cache is a folder for the engine's compile caches; "" is the engine's default.
	Cache string
	// CacheShared are the folders that caches have in common, to which links in Cache lead.
	CacheShared []string
	// Scratch is the folder for this process's temporary files.
	Scratch string
	// Notify is the address of the NOTIFY_SOCKET; empty for none.
	Notify string
	// Key is the API key that the engine requires, see NewKey; "" for none. It is
	// passed in the environment, never on the command line.
	Key string
}

// Command is how to start an engine and where to reach it.
type Command struct {
	Engine functions.Engine
	Name   string
	Argv   []string
	Env    []string
	Dir    string               // working directory; empty is the caller's choice
	URL    string               // http://127.0.0.1:PORT
	Health string               // path
	Serves []functions.Endpoint // that it is asked for a token at; none: all, in their order
	Probe  functions.Probe
	Key    string // that it requires; "" for none
	// Scratch is the folder it needs, "" for none; ScratchFiles are made in it, by name,
	// for the engine alone.
	Scratch      string
	ScratchFiles map[string]string
}

// Prepare returns the command of a model's engine. The error is one line for the
// author of the model file.
func (p Programs) Prepare(r Request) (Command, error) {
	row, ok := engineRow(r.Spec.Engine)
	if !ok {
		return Command{}, fmt.Errorf("unknown engine %q", r.Spec.Engine)
	}
	environ := p.environ()
	c := Adopted(r.Spec, r.Name, r.Port)
	expand := func(s string) string { return s }
	var vars []string // of the engine's defaults
	var err error
	if r.Spec.Engine == functions.EngineCommand {
		expand = strings.NewReplacer("{port}", strconv.Itoa(r.Port), "{model}", r.Path, "{name}", r.Name).Replace
		err = p.userCommand(&c, r, expand)
	} else {
		row, vars, err = p.engineCommand(&c, r, row, environ)
	}
	if err != nil {
		return Command{}, err
	}
	env := slices.Concat(Environ(environ), row.env, vars, c.featureEnv(r, row, environ))
	for _, k := range slices.Sorted(maps.Keys(r.Spec.Env)) {
		value := r.Spec.Env[k]
		if r.Spec.Engine == functions.EngineCommand && r.Key != "" && strings.Contains(value, keyWord) {
			value, c.Key = strings.ReplaceAll(value, keyWord, r.Key), r.Key
		}
		env = append(env, k+"="+expand(value))
	}
	if row.key != "" && r.Key != "" {
		env, c.Key = append(env, row.key+"="+r.Key), r.Key // after the model's own: clients send this one
	}
	c.Env = lastWins(env)
	return c, nil
}

func (p Programs) environ() []string {
	if p.Environ != nil {
		return p.Environ()
	}
	return os.Environ()
}

// userCommand fills in the program, arguments and health path of a model with the
// engine "command".
func (p Programs) userCommand(c *Command, r Request, expand func(string) string) error {
	if err := checkCommand(r); err != nil {
		return err
	}
	for _, a := range r.Spec.Args {
		c.Argv = append(c.Argv, expand(a))
	}
	dir := cmp.Or(r.Spec.Folder, r.Dir)
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		if r.Spec.Folder != "" {
			return fmt.Errorf("engine command: spec.folder: %s is no folder of this machine", dir)
		}
		dir = "" // the model file is on another machine
	}
	program := c.Argv[0]
	if strings.ContainsRune(program, '/') && !filepath.IsAbs(program) && dir != "" {
		program = filepath.Join(dir, program)
	}
	path, err := p.look(program)
	if err != nil {
		found, change := "not found: "+lookPathError(err), "install it, or begin args with its whole path"
		switch {
		case errors.Is(err, fs.ErrPermission):
			found, change = "cannot be run: "+lookPathError(err), "chmod +x it, or begin args with the program that runs it, such as bash or python3"
		case errors.Is(err, syscall.EISDIR):
			found, change = "is a folder", "name the program in it"
		}
		return fmt.Errorf("engine command: program %q %s; %s", r.Spec.Args[0], found, change)
	}
	c.Argv[0], c.Dir = path, dir
	return nil
}

// engineCommand fills in the program and arguments of a known engine. It returns
// the row of the program that was found, and variables of the engine's defaults.
func (p Programs) engineCommand(c *Command, r Request, row row, environ []string) (_ row, vars []string, err error) {
	e := r.Spec.Engine
	if r.Path == "" {
		return row, nil, fmt.Errorf("engine %s: the model has no source", e)
	}
	for _, a := range r.Spec.Args {
		if f := functions.ReservedFlag(e, a); f != "" {
			return row, nil, fmt.Errorf("args: %s is set by thaw and cannot be given", f)
		}
	}
	program, err := p.program(e, row, environ)
	if err != nil {
		return row, nil, err
	}
	if alt, ok := moduleRow(e, program); ok {
		row, c.Health = alt, alt.health
	}
	if p.RefuseVulnerable {
		if err := refuseVulnerable(e, program); err != nil {
			return row, nil, err
		}
	}
	args, err := row.args(r)
	if err != nil {
		return row, nil, err
	}
	if row.defaults != nil {
		host := ThisHost
		if p.Host != nil {
			host = p.Host
		}
		var more []string
		more, vars = row.defaults(r, host())
		args = append(args, more...)
	}
	if r.Streamed {
		if row.streams == nil {
			return row, nil, fmt.Errorf("engine %s: it cannot be started on a checkpoint that is still arriving", e)
		}
		args = append(args, row.streams...)
	}
	if row.keyFile != nil && r.Key != "" && r.Scratch != "" && !hasFlag(r.Spec.Args, "--config") &&
		compareVersions(installedAt(e, program).Version, row.keyFileFrom) >= 0 {
		c.Key, c.Scratch = r.Key, r.Scratch
		args = append(args, c.addKeyFile(row))
	}
	c.Argv = slices.Concat([]string{program}, args, r.Spec.Args)
	return row, vars, nil
}

// keyWord in the env of a command engine stands for its API key.
const keyWord = "{key}"

// addKeyFile adds the file with the engine's key, and returns the argument that names it.
func (c *Command) addKeyFile(row row) (arg string) {
	const name = "key.yaml"
	c.ScratchFiles = map[string]string{name: row.keyFile(c.Key)}
	return "--config=" + filepath.Join(c.Scratch, name)
}

// featureEnv returns the variables of what the request uses: scratch folder, cache,
// GPUs, sleep, adapters, notify socket.
func (c *Command) featureEnv(r Request, row row, environ []string) (env []string) {
	if r.Scratch != "" && row.python {
		env, c.Scratch = append(env, scratchEnv(environ, r.Scratch)...), r.Scratch
	}
	if r.Cache != "" && row.cache != nil {
		env = append(env, row.cache(r.Cache)...)
	}
	env = append(env, gpuEnv(r)...)
	if row.sleep && hasFlag(r.Spec.Args, "--enable-sleep-mode") {
		env = append(env, devMode)
	}
	if len(r.Spec.Adapters) > 0 {
		env = append(env, row.adapters...)
	}
	if row.notify && r.Notify != "" {
		env = append(env, "NOTIFY_SOCKET="+r.Notify)
	}
	return env
}

// NewKey returns a random API key. Each replica has its own: every local user can
// connect to an engine, which listens on loopback.
func NewKey() string { return "sk-" + rand.Text() }

// devMode enables vLLM's control endpoints, such as /sleep and /wake_up. They are
// reachable on loopback only; the activator's allow-list lacks them.
const devMode = "VLLM_SERVER_DEV_MODE=1"

// Sleeps reports whether a model's engine can sleep: a vLLM with --enable-sleep-mode,
// or in development mode (which on a CPU has the calls without moving weights).
func Sleeps(spec functions.ModelSpec) bool {
	row, _ := engineRow(spec.Engine)
	return row.sleep && (hasFlag(spec.Args, "--enable-sleep-mode") || spec.Env["VLLM_SERVER_DEV_MODE"] == "1")
}

// Streams reports whether an engine can be started on a checkpoint that is still
// arriving: it reads its files once and needs none when it serves.
func Streams(e functions.Engine) bool { r, _ := engineRow(e); return r.streams != nil }

// scratchEnv puts the sockets and temporary files of a Python engine into dir. The
// cache of torch stays shared.
func scratchEnv(have []string, dir string) []string {
	env := []string{"TMPDIR=" + dir, "VLLM_RPC_BASE_PATH=" + dir}
	if lookupEnv(have, "TORCHINDUCTOR_CACHE_DIR") == "" {
		env = append(env, "TORCHINDUCTOR_CACHE_DIR="+filepath.Join(os.TempDir(), "torchinductor_"+strconv.Itoa(os.Getuid())))
	}
	return env
}

// Adopted is the Command of a running engine, for New; the caller sets its key.
func Adopted(spec functions.ModelSpec, name string, port int) Command {
	row, _ := engineRow(spec.Engine)
	c := Command{Engine: spec.Engine, Name: name, Health: row.health, Serves: spec.Serves, Probe: spec.Probe, URL: "http://127.0.0.1:" + strconv.Itoa(port)}
	if spec.Engine == functions.EngineCommand && spec.Health != "" {
		c.Health = spec.Health
	}
	return c
}

// Notifies reports whether an engine sends sd_notify messages.
func Notifies(e functions.Engine) bool { r, _ := engineRow(e); return r.notify }
