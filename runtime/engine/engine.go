package engine

import (
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// Programs finds the programs of engines.
type Programs struct {
	// Thaw is the path of the thaw binary, which is ember.
	Thaw string
	// Look finds a program by name or checks a path; nil is exec.LookPath.
	Look func(string) (string, error)
	// Environ is what engines inherit from, and where THAW_ENGINE_… are read;
	// nil is os.Environ.
	Environ func() []string
	// Host tells of the machine; nil is ThisHost.
	Host func() Host
	// Manual, if not nil, checks args against what the installed engine takes.
	Manual *Manual
}

// Request is one engine to prepare.
type Request struct {
	Spec functions.ModelSpec
	Name string // the model name it serves
	Path string // the checkpoint's folder or file; may be empty for command
	Dir  string // folder of the model file, for relative programs of command
	Port int    // see FreePort
	GPUs []int  // indices the scheduler chose
	// GPUMemory is the size of each such GPU, where known; with it the model's
	// gpuMemory becomes the share an engine is told to take.
	GPUMemory functions.Bytes
	// Streamed: the files at Path are still arriving and reads wait for their
	// bytes. The engine must have read all it wants when it is READY.
	Streamed bool
	// Weights is a server of the files of weights, which the folder lacks: unix:
	// and the path of a socket. Ember alone can ask; "" for none.
	Weights string
	// Cache is a folder for the engine's compile caches; "" is its own choice.
	Cache string
	// Scratch is a folder of this one process, for what it leaves behind.
	Scratch string
	// Notify is the address of the NOTIFY_SOCKET; empty for none.
	Notify string
	// Key is what the engine is to want from whoever asks it, see NewKey; ""
	// for none. It goes into the environment, never onto the command line.
	Key string

	lacks func(flag string) bool // the installed engine is known not to take it
}

// Command is an engine ready to be started and asked.
type Command struct {
	Engine functions.Engine
	Name   string
	Argv   []string
	Env    []string
	Dir    string // working directory; empty is the caller's choice
	Port   int
	URL    string // http://127.0.0.1:PORT
	Health string // path
	Notify bool   // it speaks sd_notify
	Key    string // it wants, "" where it can want none
	// Scratch is the folder it expects to have, "" for none.
	Scratch string
}

// Prepare returns the command of a model's engine. The error is one line for the
// author of the model file.
func (p Programs) Prepare(r Request) (Command, error) {
	row, ok := engineRow(r.Spec.Engine)
	if !ok {
		return Command{}, fmt.Errorf("unknown engine %q", r.Spec.Engine)
	}
	inherited := p.environ()
	c := Command{
		Engine: r.Spec.Engine, Name: r.Name, Port: r.Port, Health: row.health, Notify: row.notify,
		URL: "http://127.0.0.1:" + strconv.Itoa(r.Port),
	}
	fill := func(s string) string { return s }
	var vars []string // of the engine's defaults
	var err error
	if r.Spec.Engine == functions.EngineCommand {
		fill = strings.NewReplacer("{port}", strconv.Itoa(r.Port), "{model}", r.Path, "{name}", r.Name).Replace
		err = p.userCommand(&c, r, fill)
	} else {
		row, vars, err = p.engineCommand(&c, r, row, inherited)
	}
	if err != nil {
		return Command{}, err
	}
	env := slices.Concat(Environ(inherited), row.env, vars, c.featureEnv(r, row, inherited))
	for _, k := range slices.Sorted(maps.Keys(r.Spec.Env)) {
		env = append(env, k+"="+fill(r.Spec.Env[k]))
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
func (p Programs) userCommand(c *Command, r Request, fill func(string) string) error {
	if err := checkCommand(r); err != nil {
		return err
	}
	for _, a := range r.Spec.Args {
		c.Argv = append(c.Argv, fill(a))
	}
	program := c.Argv[0]
	if strings.ContainsRune(program, '/') && !filepath.IsAbs(program) && r.Dir != "" {
		program = filepath.Join(r.Dir, program)
	}
	path, err := p.look(program)
	if err != nil {
		return fmt.Errorf("engine command: program %q not found: %s", r.Spec.Args[0], lookPathError(err))
	}
	c.Argv[0] = path
	if r.Spec.Health != "" {
		c.Health = r.Spec.Health
	}
	c.Dir = r.Dir
	return nil
}

// engineCommand fills in the program and arguments of a known engine. It returns
// the row of the program that was found, and variables of the engine's defaults.
func (p Programs) engineCommand(c *Command, r Request, row row, inherited []string) (_ row, vars []string, err error) {
	e := r.Spec.Engine
	if r.Path == "" {
		return row, nil, fmt.Errorf("engine %s: the model has no source", e)
	}
	if f := firstFlag(r.Spec.Args, row.reserved); f != "" {
		return row, nil, fmt.Errorf("args: %s is set by thaw and cannot be given", f)
	}
	program, err := p.program(e, row, inherited)
	if err != nil {
		return row, nil, err
	}
	if alt, ok := moduleRow(e, program); ok {
		row, c.Health = alt, alt.health
	}
	if err := checkInterpreter(e, program); err != nil {
		return row, nil, err
	}
	if p.Manual != nil {
		if err := p.Manual.Check(e, program, r.Spec.Args); err != nil {
			return row, nil, err
		}
	}
	r.lacks = func(flag string) bool { return p.Manual.lacks(e, program, flag) }
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
	c.Argv = slices.Concat([]string{program}, args, r.Spec.Args)
	return row, vars, nil
}

// featureEnv returns the variables of what the request uses: scratch folder, cache,
// GPUs, sleep, adapters, notify socket.
func (c *Command) featureEnv(r Request, row row, inherited []string) (env []string) {
	if r.Scratch != "" && row.python {
		env, c.Scratch = append(env, scratchEnv(inherited, r.Scratch)...), r.Scratch
	}
	if r.Cache != "" && row.cache != nil {
		env = append(env, row.cache(r.Cache)...)
	}
	env = append(env, gpuEnv(r)...)
	if row.sleep && hasFlag(r.Spec.Args, "--enable-sleep-mode") {
		env = append(env, devMode)
	}
	if len(r.Spec.Adapters) > 0 && row.adapters {
		env = append(env, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
	}
	if row.notify && r.Notify != "" {
		env = append(env, "NOTIFY_SOCKET="+r.Notify)
	}
	return env
}

// NewKey is a key nobody can guess. Each replica has one of its own: engines
// listen on loopback, where everybody on the machine may knock.
func NewKey() string { return "sk-" + rand.Text() }

// devMode opens vLLM's control endpoints, /sleep and /wake_up among them. They
// are loopback's, and outside of the activator's allow-list.
const devMode = "VLLM_SERVER_DEV_MODE=1"

// Sleeps reports whether a model's engine can be sent to sleep: a vLLM with
// --enable-sleep-mode, or in its developers' mode (where a CPU speaks the
// protocol without moving any weights).
func Sleeps(spec functions.ModelSpec) bool {
	row, _ := engineRow(spec.Engine)
	return row.sleep && (hasFlag(spec.Args, "--enable-sleep-mode") || spec.Env["VLLM_SERVER_DEV_MODE"] == "1")
}

// Streams reports whether an engine can be started on a checkpoint that is
// still arriving: it reads its files once and depends on none when it serves.
func Streams(e functions.Engine) bool { r, _ := engineRow(e); return r.streams != nil }

// scratchEnv has a Python engine leave sockets and files in a folder of its own.
// What torch compiles stays where it is for all.
func scratchEnv(have []string, dir string) []string {
	env := []string{"TMPDIR=" + dir, "VLLM_RPC_BASE_PATH=" + dir}
	if lookupEnv(have, "TORCHINDUCTOR_CACHE_DIR") == "" {
		env = append(env, "TORCHINDUCTOR_CACHE_DIR="+filepath.Join(os.TempDir(), "torchinductor_"+strconv.Itoa(os.Getuid())))
	}
	return env
}

// Adopted is the command of an engine that runs already, for asking it; its key
// is the caller's to fill in.
func Adopted(spec functions.ModelSpec, name string, port int) Command {
	row, _ := engineRow(spec.Engine)
	c := Command{Engine: spec.Engine, Name: name, Port: port, Health: row.health, URL: "http://127.0.0.1:" + strconv.Itoa(port)}
	if spec.Engine == functions.EngineCommand && spec.Health != "" {
		c.Health = spec.Health
	}
	return c
}

// Notifies reports whether an engine speaks sd_notify.
func Notifies(e functions.Engine) bool { r, _ := engineRow(e); return r.notify }
