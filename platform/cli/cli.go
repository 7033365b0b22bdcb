package cli

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/initverb"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/othernames"
	"github.com/thaw-dev/thaw/platform/cli/simulateverb"
)

// Version is set by the linker.
var Version = "dev"

// Programs has the functions of the verbs that run the platform. thaw-knative, which runs
// none of these verbs, sets Client alone.
type Programs struct {
	// Serve and Agent block until ctx ends or they fail. When ctx ends they
	// drain and return nil.
	Serve func(ctx context.Context, c ServeConfig, stdout, stderr io.Writer) error
	Agent func(ctx context.Context, c AgentConfig, stdout, stderr io.Writer) error
	// Keep is the keeper process an agent starts.
	Keep func(ctx context.Context, c KeepConfig, stderr io.Writer) error
	// Loader is the loader of a node in a cluster. It ends as Agent does.
	Loader func(ctx context.Context, c LoaderConfig, stdout, stderr io.Writer) error
	// WarmHost runs the interpreter that is forked into the pods of a node.
	WarmHost func(ctx context.Context, c WarmHostConfig, stdout, stderr io.Writer) error
	// Runtime is the shim in a model's pod.
	Runtime func(ctx context.Context, c RuntimeConfig, stdout, stderr io.Writer) error
	// Engines are the embedded ones, by name; args are all after the name.
	Engines map[string]func(ctx context.Context, args []string, stdout, stderr io.Writer) error
	// Bench measures; args are all after the verb.
	Bench func(ctx context.Context, args []string, stdout, stderr io.Writer) error
	// Knative runs thaw-knative; args are all after its name. An Error without
	// text means that the program has printed its error.
	Knative func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error
	// Client returns the client of a cluster's controller for verbs that call a server; key is
	// that of --key or THAW_KEY. nil: the client of the server at --server.
	Client func(c ClusterFlags, key string) (*api.Client, error)
	// OpenStore opens the store below a data folder.
	OpenStore func(LocalStoreOptions) (LocalStore, error)
	// Sources opens the sources of weights, by scheme; end closes their connections.
	Sources func() (all map[string]loader.Source, end func())
	// GPUs lists the GPUs of the driver. driver is its name, or why there is none.
	GPUs   func() (gpus []functions.GPU, driver string, err error)
	Getenv func(string) string // nil: os.Getenv, and Environ is os.Environ
	// Environ lists the environment's NAME=VALUE for the warning of unknown names; may be nil.
	Environ func() []string
	Now     func() time.Time // nil: time.Now
}

// Main is the program: it runs the verb of args (without the program's name)
// and returns the exit code.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, p Programs) int {
	if p.Getenv == nil {
		p.Getenv, p.Environ = os.Getenv, os.Environ
	}
	stdin = kit.Interruptible(ctx, stdin)
	c := &connection{printer: printer{kit.NewTerminal(stdin, stdout, stderr, p.Getenv)}, programs: p, keys: keyFinder{getenv: p.Getenv}}
	out := &checkedOutput{Writer: stdout}
	c.Out = out
	if p.Now != nil {
		c.Now = p.Now
	}
	root := newRoot(c)
	root.SetIn(stdin)
	root.SetOut(out)
	root.SetErr(stderr)
	err := kit.Execute(ctx, root, args)
	if out.failed != nil && ctx.Err() == nil {
		err = &kit.Error{Exit: kit.ExitFailed, What: "the output could not be written", Err: out.failed}
	}
	return c.Report(ctx, err)
}

// checkedOutput keeps the first error of a write: tables are printed without a look at them.
type checkedOutput struct {
	io.Writer
	failed error
}

func (o *checkedOutput) Write(b []byte) (int, error) {
	n, err := o.Writer.Write(b)
	o.failed = cmp.Or(o.failed, err)
	return n, err
}

// ownForms are the verbs whose output has one form, and its name where it has one.
var ownForms = map[string]string{"run": "", "logs": "", "serve": "", "agent": "", "completion": "", "init": "yaml", "view": "yaml"}

type printer struct{ *kit.Terminal }

// connection is one run of the program, with the flags that say which server is meant.
type connection struct {
	printer
	programs Programs
	server   string
	keys     keyFinder
	timeout  time.Duration
	warned   bool         // of unknown variables
	cluster  ClusterFlags // of a program that has Programs.Client
}

type (
	platformVerbs struct{ *connection } // verbs that call no server
	modelVerbs    struct{ *connection } // verbs of models, teams and keys
	weightVerbs   struct{ *connection } // verbs of the stores of weights
)

func newRoot(c *connection) *cobra.Command {
	var noColor bool
	root := kit.NewRoot("thaw", "Serverless inference: many models share few GPUs behind one OpenAI endpoint",
		[2]string{"use", "Use models:"}, [2]string{"own", "Own models:"}, [2]string{"run", "Run the platform:"})
	root.Example = `  thaw serve --functions functions/shipped     start the platform
  thaw run tiny "What is thaw?"                chat with a model, cold or not
  thaw ps                                      what runs
  thaw deploy -f model.yaml                    add a model`
	root.Long = `thaw holds a request for a model at rest, wakes it, reports its progress, and
answers as soon as the model is ready. A model without traffic costs nothing.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 not allowed or over
quota, 5 took too long, 6 unavailable (try again), 130 interrupted.`
	root.Version = Version // --version, beside the verb
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if noColor {
			c.Color = false
		}
		if c.timeout < 0 {
			return kit.Usage("such as 30s", "--timeout: %s is no time to wait", c.timeout)
		}
		if own, ok := ownForms[cmd.Name()]; ok && cmd.Flags().Changed("output") && c.Output != own {
			return kit.Usage(cmp.Or(own, "leave -o out"), "-o %s is no form of output of %s", functions.Clip(c.Output), cmd.CommandPath())
		}
		if ownForms[cmd.Name()] == "" && cmd.LocalNonPersistentFlags().Lookup("output") == nil {
			if err := c.requireOutput(kit.OutputForms...); err != nil {
				return err
			}
		}
		variables := map[string]string{}
		for _, name := range []string{"THAW_DATA", "THAW_FUNCTIONS"} {
			variables[name] = c.programs.Getenv(name)
		}
		return kit.CheckTildes(cmd.Flags(), variables)
	}

	f := root.PersistentFlags()
	f.BoolVarP(&c.Quiet, "quiet", "q", false, "no progress, no remarks")
	f.BoolVar(&noColor, "no-color", false, "no colours [NO_COLOR]")
	f.BoolVar(&c.NoInput, "no-input", false, "never ask on the terminal")

	f.StringVar(&c.server, "server", "", "URL of the server (default "+DefaultServer+") [THAW_SERVER]")
	f.StringVar(&c.keys.key, "key", "", "key to send [THAW_KEY]")
	f.StringVar(&c.keys.data, "data", "", "the server's data folder on this machine, for its admin token [THAW_DATA]")
	f.StringVarP(&c.Output, "output", "o", "table", "form of output: "+strings.Join(kit.OutputForms, ", "))
	f.DurationVar(&c.timeout, "timeout", 0, "give up after so long; 0 is the verb's own bound")

	p, m, w := platformVerbs{c}, modelVerbs{c}, weightVerbs{c}
	own := []*cobra.Command{
		p.serve(), p.agent(), p.keep(), p.loader(), p.warmHost(), p.runtime(), p.engine(), p.bench(),
		simulateverb.New(c.Terminal, Version), p.version(), p.config(), p.completion(), p.check(), p.init(),
	}
	for _, cmd := range own {
		// They call no server, so they do not list how to find one.
		kit.HideInherited(cmd)
	}
	root.AddCommand(own...)
	root.AddCommand(m.run(), m.models(), m.ps(), m.wake(), m.prewarm(), m.stop(), w.pull(), w.prefetch(),
		w.cache(), m.deploy(), m.get(), m.describe(), m.rm(), m.logs(), m.keysVerb(), m.agentsVerb(),
		m.explainVerb(), m.route(), m.events(), c.doctor())
	return root
}

// settingsVerb makes cmd the verb that runs program with the settings in *cfg, which
// check validates.
func settingsVerb[C any](c platformVerbs, cmd *cobra.Command, cfg *C, fileEnv string, check func() error,
	program func(context.Context, C, io.Writer, io.Writer) error) *cobra.Command {
	cmd.Args, cmd.GroupID = kit.ExactArgs(), "run"
	load := kit.BindSettings(cmd, cfg, fileEnv, c.programs.Getenv, check, "thaw "+cmd.Name()+" --help shows every setting")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if _, err := load(); err != nil {
			return err
		}
		if l, ok := any(cfg).(interface{ Logger(io.Writer) *slog.Logger }); ok && fileEnv != "" {
			c.warnOfVariables(l.Logger(c.Err))
		}
		return program(cmd.Context(), *cfg, c.Out, c.Err)
	}
	return cmd
}

func (v platformVerbs) bindServe(cmd *cobra.Command, cfg *ServeConfig) (load func() (origin map[string]string, err error)) {
	othernames.RegisterFlags(cmd.Flags())
	check := func() error {
		if err := othernames.Check(v.programs.Getenv); err != nil {
			return err
		}
		return cfg.check(v.programs.Getenv)
	}
	getenv := othernames.Getenv(v.programs.Getenv)
	return kit.BindSettings(cmd, cfg, "THAW_CONFIG", getenv, check, "thaw serve --example-config shows every setting")
}

// The file with every setting, commented, and the schema of such a file are made from
// ServeConfig by the tests, which fail while they are not what it says.
//
//go:embed serve.example.yaml
var exampleSettings string

//go:embed serve.schema.json
var settingsSchema string

func (v platformVerbs) serve() *cobra.Command {
	var showExample, showSchema bool
	cfg := new(ServeConfig)
	cmd := &cobra.Command{
		Use: "serve [flags]", Short: "Run the platform on this machine", GroupID: "run",
		Example: `  thaw serve --functions functions/shipped
  thaw serve --addr 0.0.0.0:8080 --data /var/lib/thaw --functions /etc/thaw/functions
  thaw serve --example-config > thaw.yaml; thaw serve --config thaw.yaml`,
		Args: kit.ExactArgs(),
	}
	load := v.bindServe(cmd, cfg)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case showExample:
			_, err := io.WriteString(v.Out, exampleSettings)
			return err
		case showSchema:
			_, err := io.WriteString(v.Out, settingsSchema)
			return err
		}
		if _, err := load(); err != nil {
			return err
		}
		v.warnOfVariables(cfg.Logger(v.Err))
		err := v.programs.Serve(cmd.Context(), *cfg, v.Out, v.Err)
		if p, ok := errors.AsType[*fs.PathError](err); ok && errors.Is(err, fs.ErrPermission) && strings.HasPrefix(p.Path, cfg.Data+"/") {
			err = &kit.Error{Err: err, Hint: "what is below --data belongs to the user that served before: run as that user, or name another folder"}
		}
		return err
	}
	cmd.Flags().BoolVar(&showExample, "example-config", false, "print a commented file of settings and exit")
	cmd.Flags().BoolVar(&showSchema, "config-schema", false, "print the JSON schema of that file and exit")
	return cmd
}

func (v platformVerbs) agent() *cobra.Command {
	cfg := new(AgentConfig)
	return settingsVerb(v, &cobra.Command{
		Use: "agent --server URL --token-file F", Short: "Join this machine to a server on another one",
		Example: `  thaw agent --server https://10.0.0.1:8090 --token-file join-token --addr 10.0.0.2:8090`,
	}, cfg, "THAW_AGENT_CONFIG", func() error { return cfg.check(v.programs.Getenv) }, v.programs.Agent)
}

func (v platformVerbs) keep() *cobra.Command {
	var k KeepConfig
	cmd := &cobra.Command{
		Use: "keep --socket S --dir D", Short: "Parent process of engines, started by an agent", Hidden: true, Args: kit.ExactArgs(),
		Example: "  thaw keep --socket /run/thaw/keeper.sock --dir /var/lib/thaw/keeper",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if k.Socket == "" || k.Dir == "" {
				return kit.Usage("an agent starts the keeper", "--socket and --dir are needed")
			}
			return v.programs.Keep(cmd.Context(), k, v.Err)
		},
	}
	cmd.Flags().StringVar(&k.Socket, "socket", "", "unix socket to listen on")
	cmd.Flags().StringVar(&k.Dir, "dir", "", "folder for logs and the lock")
	cmd.Flags().DurationVar(&k.OrphanTimeout, "orphan-timeout", time.Minute, "how long to run without an agent")
	return cmd
}

func (v platformVerbs) engine() *cobra.Command {
	return &cobra.Command{
		Use: "engine NAME [args]", Short: "Run an embedded engine", Hidden: true, DisableFlagParsing: true,
		Example: "  thaw engine ember --help",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return kit.Usage("thaw engine ember --help", "the name of an engine is missing")
			}
			run := v.programs.Engines[args[0]]
			if run == nil {
				return kit.Usage("thaw starts engines itself", "%q is no embedded engine", functions.Clip(args[0]))
			}
			return run(cmd.Context(), args[1:], v.Out, v.Err)
		},
	}
}

func (v platformVerbs) bench() *cobra.Command {
	return &cobra.Command{
		Use: "bench WHAT [flags]", Short: "Measure cold starts", GroupID: "run", DisableFlagParsing: true,
		Example: `  thaw bench coldstart --model tiny -n 20
  thaw bench coldstart --model tiny -n 20 --baseline before.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return v.programs.Bench(cmd.Context(), args, v.Out, v.Err)
		},
	}
}

func (v platformVerbs) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "The version of this program", Example: `  thaw version`, Args: kit.ExactArgs(),
		RunE: func(*cobra.Command, []string) error {
			if v.Output == "json" || v.Output == "yaml" {
				return v.Encode(map[string]string{"version": Version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
			}
			_, err := fmt.Fprintf(v.Out, "thaw %s %s %s/%s\n", Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

func (v platformVerbs) config() *cobra.Command {
	cmd := kit.VerbGroup(&cobra.Command{Use: "config", Short: "Show settings", Example: `  thaw config view --show-origin`})
	var show bool
	cfg := new(ServeConfig)
	view := &cobra.Command{
		Use: "view [flags of serve]", Short: "What thaw serve would run with", Args: kit.ExactArgs(),
		Example: `  thaw config view
  thaw config view --show-origin --config thaw.yaml`,
	}
	load := v.bindServe(view, cfg)
	view.RunE = func(*cobra.Command, []string) error {
		origin, err := load()
		if err != nil {
			return err
		}
		for _, s := range kit.Settings(cfg) {
			line := s.Name + ": " + s.Quoted()
			if show {
				line = fmt.Sprintf("%-40s # %s", line, origin[s.Name])
			}
			fmt.Fprintln(v.Out, kit.Plain(strings.TrimRight(line, " ")))
		}
		return nil
	}
	view.Flags().BoolVar(&show, "show-origin", false, "tell where each value comes from")
	cmd.AddCommand(view)
	return cmd
}

func (v platformVerbs) completion() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish|powershell", Short: "Completion for a shell", Args: kit.ExactArgs("the shell"),
		Example: `  source <(thaw completion bash)
  thaw completion fish > ~/.config/fish/completions/thaw.fish`,
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(v.Out, true)
			case "zsh":
				return root.GenZshCompletion(v.Out)
			case "fish":
				return root.GenFishCompletion(v.Out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(v.Out)
			}
			return kit.Usage("bash, zsh, fish or powershell", "%q is no shell thaw knows", functions.Clip(args[0]))
		},
	}
}

func (v platformVerbs) init() *cobra.Command {
	return initverb.New(initverb.Options{Terminal: v.Terminal, Sources: v.programs.Sources, GPUs: v.programs.GPUs, Folder: os.Getwd})
}
