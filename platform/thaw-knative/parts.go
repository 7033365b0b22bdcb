package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// part is what runs in the cluster for as long as it is not told to end. It has
// flags of its own and none of those of verbs.
type part struct {
	use, short, examples string
	flags                func(*pflag.FlagSet)
	run                  func(ctx context.Context, c *command) error
}

// parts of a cluster, by the word that starts them.
func parts() map[string]func(*command) part {
	return map[string]func(*command) part{
		"activator":  activatorPart,
		"controller": controllerPart,
	}
}

// words are all that the program knows.
func words() []string {
	return slices.Sorted(maps.Keys(merged(verbs(), parts())))
}

func merged[A, B any](a map[string]A, b map[string]B) map[string]bool {
	out := map[string]bool{}
	for word := range a {
		out[word] = true
	}
	for word := range b {
		out[word] = true
	}
	return out
}

// part runs one until ctx ends.
func (c *command) part(ctx context.Context, word string, p part, args []string) error {
	f := pflag.NewFlagSet(word, pflag.ContinueOnError)
	p.flags(f)
	if helped, err := c.parse(f, args, p.use, p.short, p.examples); helped || err != nil {
		return err
	}
	if f.NArg() > 0 {
		return usageError("", "%q is more than %s takes", kit.Plain(f.Arg(0)), word)
	}
	return p.run(ctx, c)
}

// logging is the flags of a part's log.
type logging struct{ format, level string }

func (l *logging) flags(f *pflag.FlagSet) {
	f.StringVar(&l.format, "log-format", "json", "text or json")
	f.StringVar(&l.level, "log-level", "info", "debug, info, warn or error")
}

// handler makes loggers of that format and level.
func (l *logging) handler() (func(io.Writer) *slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, usageError("debug, info, warn or error", "--log-level %s", kit.Plain(l.level))
	}
	o := &slog.HandlerOptions{Level: level}
	switch l.format {
	case "json":
		return func(w io.Writer) *slog.Logger { return slog.New(slog.NewJSONHandler(w, o)) }, nil
	case "text":
		return func(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, o)) }, nil
	}
	return nil, usageError("text or json", "--log-format %s", kit.Plain(l.format))
}

// readToken reads the token of the cluster's links.
func readToken(file string) (string, error) {
	if file == "" {
		return "", usageError("the file of the Secret thaw-control-tls", "--token-file is missing")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", &kit.Error{What: "the token of the links", Err: err}
	}
	token := strings.TrimSpace(string(b))
	if len(token) < 16 || strings.ContainsAny(token, " \r\n\t") {
		return "", &kit.Error{What: "the token of the links", Err: fmt.Errorf("%s holds none", file), Hint: "one word of at least 16 letters"}
	}
	return token, nil
}
