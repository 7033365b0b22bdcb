package kit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/thaw-dev/thaw/functions"
)

// helpTemplate puts the examples before the flags.
const helpTemplate = `{{with (or .Long .Short)}}{{. | trimTrailingWhitespaces}}

{{end}}{{.UsageString}}`

const inheritedFlags = `{{if .HasAvailableInheritedFlags}}

For every verb:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}`

const usageTemplate = `{{if .HasExample}}Examples:
{{.Example}}

{{end}}Usage:
  {{if .Runnable}}{{.UseLine}}{{else}}{{.CommandPath}} VERB{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if (and (eq .GroupID $group.ID) .IsAvailableCommand)}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if not .AllChildCommandsHaveGroup}}

Other verbs:{{range $cmds}}{{if (and (eq .GroupID "") .IsAvailableCommand)}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}` + inheritedFlags + `{{if .HasAvailableSubCommands}}

{{.CommandPath}} VERB --help tells more about one.{{end}}
`

// Command is a verb. It is cobra's type, which other packages use by this name.
type Command = cobra.Command

// NewRoot makes the root command of a program; groups are pairs of id and title under
// which its help lists the verbs.
func NewRoot(name, short string, groups ...[2]string) *Command {
	root := VerbGroup(&Command{Use: name + " VERB", Short: short, SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(cmd *Command, _ []string) error { return CheckTildes(cmd.Flags(), nil) }})
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g[0], Title: g[1]})
	}
	root.SetHelpCommand(&Command{Use: "help [VERB]", Short: "Help about a verb", Hidden: true, RunE: func(cmd *Command, args []string) error {
		target, rest, err := cmd.Root().Find(args)
		if err != nil || len(rest) > 0 {
			return UnknownVerb(cmd.Root(), strings.Join(args, " "))
		}
		return target.Help()
	}})
	if len(groups) > 0 {
		root.SetHelpCommandGroupID(groups[0][0])
	}
	root.SetHelpTemplate(helpTemplate)
	root.SetUsageTemplate(usageTemplate)
	return root
}

// Execute runs the verb of args, unless one of them is a long flag with one dash, which would
// be read as several short ones.
func Execute(ctx context.Context, root *Command, args []string) error {
	if err := checkDashes(root, args); err != nil {
		return err
	}
	root.SetArgs(append([]string{}, args...)) // nil would mean the arguments of the process
	return root.ExecuteContext(ctx)
}

// checkDashes refuses an argument such as -server. A word whose first letter is a short flag
// with a value, such as -fserve.yaml, has to begin a long flag's name.
func checkDashes(root *Command, args []string) error {
	cmd, _, err := root.Find(args)
	if err != nil || cmd.DisableFlagParsing || len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return nil
	}
	all, names := flagsOf(cmd)
	wantsValue := func(word string) bool { // the flag of word, in the argument behind it
		f := all.Lookup(strings.TrimPrefix(word, "--"))
		if len(word) == 2 {
			f = all.ShorthandLookup(word[1:])
		}
		return f != nil && word[0] == '-' && f.NoOptDefVal == ""
	}
	for i, word := range args {
		if word == "--" {
			break
		}
		name, value, has := strings.Cut(strings.TrimPrefix(word, "-"), "=")
		if len(name) < 3 || word[0] != '-' || word[1] == '-' || i > 0 && wantsValue(args[i-1]) {
			continue
		}
		near := functions.Filter(names, func(long string) bool { return strings.HasPrefix(long, name) })
		if len(near) == 0 && !wantsValue("-"+name[:1]) {
			near = functions.Nearest(name, names, 1)
		}
		if len(near) == 0 {
			continue
		}
		meant := slices.MinFunc(near, func(a, b string) int { return cmp.Compare(len(a), len(b)) })
		if has {
			meant += "=" + functions.Clip(value)
		}
		return Usage("did you mean --"+meant+"?", "%s has one dash: a flag of more than one letter has two", functions.Clip(word))
	}
	return nil
}

// flagsOf returns the flags of a verb, those of all verbs too, and their names.
func flagsOf(cmd *Command) (all *FlagSet, names []string) {
	all, names = pflag.NewFlagSet("", pflag.ContinueOnError), []string{"help"}
	if !cmd.HasParent() {
		names = append(names, "version")
	}
	for _, f := range []*FlagSet{cmd.LocalFlags(), cmd.InheritedFlags()} {
		all.AddFlagSet(f)
	}
	all.VisitAll(func(f *Flag) { names = append(names, f.Name) })
	return all, names
}

// HideInherited leaves the flags of all verbs out of the help of cmd, a verb that
// reads none of them.
func HideInherited(cmd *cobra.Command) {
	cmd.SetUsageTemplate(strings.Replace(usageTemplate, inheritedFlags, "", 1))
}

// VerbGroup makes cmd a verb that only has verbs below it.
func VerbGroup(cmd *Command) *Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return UnknownVerb(cmd, args[0])
	}
	return cmd
}

func UnknownVerb(cmd *cobra.Command, word string) error {
	names := functions.ConvertAll(functions.Filter(cmd.Commands(), (*cobra.Command).IsAvailableCommand), (*cobra.Command).Name)
	hint := DidYouMean(word, names, 1, cmd.CommandPath()+" --help lists the verbs")
	verb := foreignVerbs[word]
	if first, _, more := strings.Cut(verb, " "); slices.Contains(names, first) {
		if hint = "did you mean " + verb + "?"; more {
			hint = "thaw " + verb
		}
	}
	return Usage(hint, "%q is no verb of %s", functions.Clip(word), cmd.CommandPath())
}

// foreignVerbs are verbs of other programs, with those that do the same here.
var foreignVerbs = map[string]string{
	"list": "models", "ls": "models", "show": "describe", "inspect": "describe", "chat": "run", "generate": "run",
	"create": "deploy", "apply": "deploy", "add": "deploy", "push": "deploy", "delete": "rm", "remove": "rm", "unload": "stop", "revoke": "rm",
	"load": "wake", "start": "wake", "up": "serve", "server": "serve", "status": "ps", "top": "ps", "restart": "stop", "edit": "deploy", "scale": "deploy", "download": "pull", "login": "keys",
	"team": "get teams lists them; a Team is a file of the folder --functions", "teams": "get teams lists them; a Team is a file of the folder --functions",
	"batch": "serve answers /v1/batches; there is no verb for it", "batches": "serve answers /v1/batches; there is no verb for it",
	"install": "deploy --to knative needs thaw-knative install on the cluster", "upgrade": "doctor tells the version; thaw-knative install brings a cluster to its own",
}

// foreignFlags are flags of other programs, for verbs that have the flag beside, with what to give here.
var foreignFlags = []struct{ beside, words, hint string }{
	{"addr", "port listen bind p a", "did you mean --addr HOST:PORT?"},
	{"log-level", "verbose debug v", "did you mean --log-level debug?"},
	{"functions", "model m", "models are files of --functions DIR; thaw init SOURCE writes one"},
	{"max-tokens", "prompt message p m f", "the prompt is an argument: thaw run NAME [PROMPT]"},
	{"max-tokens", "stream no-stream", "an answer is printed as it comes: leave it out"},
	{"max-tokens", "keepalive keep-alive", "scale: {idle: 5m} in the model's file says how long it stays"},
	{"output", "json yaml format", "did you mean -o json?"},
	{"tail", "lines since", "did you mean --tail N?"},
	{"", "version", "thaw version prints it"},
	{"filename", "replicas scale", "scale: {min: N, max: N} in the model's file says how many"},
	{"", "force yes y f", "nothing is asked: leave it out"},
	{"", "all a", "thaw models lists those at rest, too"},
}

// flagError makes a usage error of a flag error, with a suggestion for an unknown flag.
func flagError(cmd *Command, err error) error {
	if word := cmd.Flags().Arg(0); cmd.HasSubCommands() && word != "" {
		return UnknownVerb(cmd, word)
	}
	hint := cmd.CommandPath() + " --help lists the flags"
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		word, group := unknown.GetSpecifiedName(), unknown.GetSpecifiedShortnames()
		all, names := flagsOf(cmd)
		if near := functions.Nearest(word, names, 1); len(near) > 0 && group == "" {
			hint = "did you mean --" + near[0] + "?"
		}
		for _, f := range foreignFlags {
			if (f.beside == "" || all.Lookup(f.beside) != nil) && slices.Contains(strings.Fields(f.words), word) {
				hint = f.hint
				break
			}
		}
		if len(group) > 1 {
			hint = "a flag of more than one letter has two dashes; " + hint
		}
	}
	if strings.Contains(err.Error(), "missing unit in duration") {
		hint = "a duration has a unit, such as 5s or 2m"
	}
	if before, number, ok := strings.Cut(err.Error(), "strconv."); ok {
		want := "that is no whole number"
		if strings.HasPrefix(number, "ParseFloat") {
			want = "that is no number"
		}
		err = errors.New(before + want)
	}
	return &Error{Exit: ExitUsage, Err: err, Hint: hint}
}

type Args = cobra.PositionalArgs

// checkEmpty refuses an empty argument, such as a variable of a shell that is not set.
func checkEmpty(cmd *Command, args []string) error {
	if slices.Contains(args, "") {
		return Usage(cmd.UseLine(), "an argument is empty")
	}
	return nil
}

// ExactArgs requires one argument per name; the names are for the error.
func ExactArgs(names ...string) Args {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return Usage(cmd.UseLine(), "%s is missing", names[len(args)])
		}
		if len(args) > len(names) {
			hint := cmd.UseLine()
			if cmd.Flags().Lookup("functions") != nil {
				hint = "models are files of --functions DIR; thaw init SOURCE writes one"
			}
			return Usage(hint, "%q is more than %s takes", functions.Clip(args[len(names)]), cmd.CommandPath())
		}
		return checkEmpty(cmd, args)
	}
}

// UpToArgs requires at least one argument, unless name is empty, and at most most (0: any number).
func UpToArgs(name string, most int) Args {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 && name != "" {
			return Usage(cmd.UseLine(), "%s is missing", name)
		}
		if most > 0 && len(args) > most {
			return Usage(cmd.UseLine(), "%q is more than %s takes", functions.Clip(args[most]), cmd.CommandPath())
		}
		return checkEmpty(cmd, args)
	}
}

// DidYouMean is the hint with the most n names nearest to word, else the other hint.
func DidYouMean(word string, names []string, n int, other string) string {
	return cmp.Or(functions.DidYouMean(word, names, n), other)
}

type (
	Flag    = pflag.Flag
	FlagSet = pflag.FlagSet
)
