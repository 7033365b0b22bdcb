// Package bench has the command `thaw bench coldstart` (cold starts of a model, or of vLLM, beside
// a baseline) and the command-line helpers that the benchmarks in bench/thaw-bench share. The
// benchmarks for developers are a program and a module of their own, bench/thaw-bench.
//
// Only numbers of the same run are comparable, so every result is a ratio to a peer or a
// comparison with a baseline; rounds are interleaved, and medians count. testkit/fake is
// an engine that generates nothing; load sends requests and checks every answer, process
// starts and ends programs, served drives a platform from outside, report writes tables
// and charts.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
)

// Exit codes, as of every verb.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130
)

const usage = `Measures cold starts from outside.

Examples:
  thaw bench coldstart --model tiny -n 20
  thaw bench coldstart --model tiny -n 20 --baseline bench/results/coldstart.json

Benchmarks:
  coldstart   from zero replicas to the first token, phase by phase

  thaw bench BENCHMARK --help lists its flags.
`

// Main runs `thaw bench ARGS…` and returns the exit code. Results go to stdout,
// everything else to stderr.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return Run(ctx, usage, map[string]Verb{"coldstart": {Run: runColdstart}}, args, stdout, stderr)
}

// Verb is one benchmark, or a program that a benchmark starts as its own child.
type Verb struct {
	Run    func(ctx context.Context, args []string, stdout, stderr io.Writer) error
	Hidden bool
}

// errUsage is a mistake in the command line that has been printed.
var errUsage = errors.New("usage")

// Run runs the verb that args names and returns the exit code. usage is the help text
// without a verb.
func Run(ctx context.Context, usage string, verbs map[string]Verb, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		to, code := stdout, exitOK
		if len(args) == 0 {
			to, code = stderr, exitUsage
		}
		fmt.Fprint(to, usage)
		return code
	}
	v, ok := verbs[args[0]]
	if !ok {
		var names []string
		for n, v := range verbs {
			if !v.Hidden {
				names = append(names, n)
			}
		}
		fmt.Fprintf(stderr, "error: there is no benchmark %q\n", args[0])
		if nearest := functions.Nearest(args[0], names, 1); len(nearest) > 0 {
			fmt.Fprintf(stderr, "hint: did you mean %s?\n", nearest[0])
		}
		return exitUsage
	}
	err := v.Run(ctx, args[1:], stdout, stderr)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errUsage):
		return exitUsage
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "interrupted")
		return exitInterrupted
	}
	fmt.Fprintf(stderr, "error: %v\n", err)
	return exitFailure
}

// Flags makes a flag set whose help begins with about: what the verb does, and examples.
func Flags(name, about string, stderr io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprintf(stderr, "%s\nFlags:\n", about)
		f.PrintDefaults()
	}
	return f
}

// Parse parses the flags of a verb that takes no arguments.
func Parse(f *flag.FlagSet, args []string) error {
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("%s takes no argument %q", f.Name(), f.Arg(0))
		fmt.Fprintln(f.Output(), "error:", err)
	}
	if err != nil {
		return errUsage
	}
	return nil
}

// UsageError prints a mistake in the command line and returns the error for it.
func UsageError(stderr io.Writer, format string, a ...any) error {
	fmt.Fprintf(stderr, "error: "+format+"\n", a...)
	return errUsage
}

// SelectParts returns the parts of a benchmark that --only names, or a usage error where one is
// not among all.
func SelectParts(stderr io.Writer, only string, all []string) (map[string]bool, error) {
	parts := map[string]bool{}
	for part := range strings.SplitSeq(only, ",") {
		part = strings.TrimSpace(part)
		if !slices.Contains(all, part) {
			return nil, UsageError(stderr, "--only: there is no part %q; there are %s", part, strings.Join(all, ", "))
		}
		parts[part] = true
	}
	return parts, nil
}

// Scratch creates a folder for data and logs. done removes it after a successful
// benchmark and prints its path after a failed one.
func Scratch(stderr io.Writer) (dir string, done func(error), err error) {
	return ScratchIn("", stderr)
}

// ScratchIn is Scratch inside the folder where; "" is the system's temporary folder.
func ScratchIn(base string, stderr io.Writer) (dir string, done func(error), err error) {
	dir, err = os.MkdirTemp(base, "thaw-bench-")
	return dir, func(err error) {
		if err == nil {
			os.RemoveAll(dir)
			return
		}
		fmt.Fprintf(stderr, "logs and data are kept in %s\n", dir)
	}, err
}

// Program returns the path of the thaw to measure: the one named, or this program.
func Program(named string) (string, error) {
	if named == "" {
		return os.Executable()
	}
	return filepath.Abs(named)
}

// CommandLine returns the command line for the report, with keys removed.
func CommandLine(verb string, args []string) []string {
	out := []string{verb}
	for i := 0; i < len(args); i++ {
		name, _, inline := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if strings.HasPrefix(args[i], "-") && name == "key" {
			out = append(out, "--key", "…")
			if !inline {
				i++
			}
			continue
		}
		out = append(out, args[i])
	}
	return out
}

// ReportOptions are the flags of a benchmark with a report.
type ReportOptions struct {
	out    *string
	asJSON *bool
	strict *bool
}

// ReportFlags adds the flags of a benchmark with a report.
func ReportFlags(f *flag.FlagSet) ReportOptions {
	return ReportOptions{
		out:    f.String("out", "bench-results", "folder for the report"),
		asJSON: f.Bool("json", false, "print the result as JSON instead of tables"),
		strict: f.Bool("strict", false, "exit with 1 when a goal is missed"),
	}
}

// result is the result of a benchmark with a report.
type result interface {
	Tables() []report.Part
	Write(dir string) error
}

// Write writes and prints the report; with --strict a missed goal is an error.
func (o ReportOptions) Write(name string, r result, goals report.Goals, stdout, stderr io.Writer) error {
	if err := r.Write(*o.out); err != nil {
		return err
	}
	if *o.asJSON {
		return Show(stdout, true, r)
	}
	for _, p := range r.Tables() {
		fmt.Fprintf(stdout, "%s\n\n", p.Heading)
		if err := p.Table.Text(stdout); err != nil {
			return err
		}
		fmt.Fprintln(stdout)
	}
	fmt.Fprintf(stderr, "wrote %s\n", filepath.Join(*o.out, name+".{json,md}"))
	if *o.strict {
		return goals.Missed()
	}
	return nil
}

// Show prints a result as JSON or as tables.
func Show(w io.Writer, asJSON bool, result any, tables ...*report.Table) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(result)
	}
	for _, t := range tables {
		if err := t.Text(w); err != nil {
			return err
		}
	}
	return nil
}
