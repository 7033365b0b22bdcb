package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// logging is the flags of a part's log.
type logging struct{ format, level string }

func (l *logging) flags(f *kit.FlagSet) {
	f.StringVar(&l.format, "log-format", "json", "text or json")
	f.StringVar(&l.level, "log-level", "info", "debug, info, warn or error")
}

// handler makes loggers of that format and level.
func (l *logging) handler() (func(io.Writer) *slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, kit.Usage("debug, info, warn or error", "--log-level %s", kit.Plain(l.level))
	}
	o := &slog.HandlerOptions{Level: level}
	switch l.format {
	case "json":
		return func(w io.Writer) *slog.Logger { return slog.New(slog.NewJSONHandler(w, o)) }, nil
	case "text":
		return func(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, o)) }, nil
	}
	return nil, kit.Usage("text or json", "--log-format %s", kit.Plain(l.format))
}

// readToken reads the token of the control stream.
func readToken(file string) (string, error) {
	if file == "" {
		return "", kit.Usage("the file of the Secret thaw-control-tls", "--token-file is missing")
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
