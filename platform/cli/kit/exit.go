package kit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/platform/catalog"
)

// Exit codes, as documented in doc.go and the help.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitDenied      = 4
	ExitTimeout     = 5
	ExitUnavailable = 6
	ExitInterrupted = 130
)

// Error is a failure with its cause, a hint and the exit code. One without text means
// that the failure has been printed.
type Error struct {
	Exit int
	What string
	Hint string
	Err  error // why; may be nil
}

func (e *Error) Error() string {
	switch {
	case e.Err == nil:
		return e.What
	case e.What == "":
		return e.Err.Error()
	}
	return e.What + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

func Usage(hint, format string, args ...any) *Error {
	return &Error{Exit: ExitUsage, What: fmt.Sprintf(format, args...), Hint: hint}
}

// Report prints err and returns its exit code.
func (t *Terminal) Report(ctx context.Context, err error) int {
	if err == nil {
		return ExitOK
	}
	if errors.Is(ctx.Err(), context.Canceled) && errors.Is(err, context.Canceled) {
		return ExitInterrupted
	}
	exit, hint := ExitFailed, ""
	if e, ok := errors.AsType[*Error](err); ok {
		if err.Error() == "" { // the cause has been printed
			return e.Exit
		}
		exit, hint = cmp.Or(e.Exit, ExitFailed), e.Hint // an Error without a code is a failure
	} else if errors.Is(err, context.DeadlineExceeded) {
		exit, hint = ExitTimeout, "give it longer with --timeout"
	} else if _, ok := errors.AsType[catalog.Problems](err); ok {
		exit = ExitUsage
	}
	lines := strings.Split(strings.TrimRight(err.Error(), "\n"), "\n")
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s\n", t.paint("31", "error:", t.ErrTTY), Plain(lines[0]))
	for _, l := range lines[1:] {
		fmt.Fprintf(&text, "       %s\n", Plain(l))
	}
	if hint != "" {
		fmt.Fprintf(&text, "%s %s\n", t.Bold("hint:"), Plain(hint))
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		io.WriteString(t.Err, text.String())
	}()
	select {
	case <-written:
	case <-time.After(logCloseFor): // a stderr that is not read must not keep the program from ending
	}
	return exit
}

// Plain spells out control characters, as [catalog.Plain] does.
func Plain(s string) string { return catalog.Plain(s) }

// RootCause returns the cause of an error of a file or a program, without the name.
func RootCause(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err
	}
	if e, ok := errors.AsType[*exec.Error](err); ok {
		return e.Err
	}
	return err
}

// UntilSignal runs a program and returns its exit code. The first SIGINT, SIGTERM or SIGHUP (a
// terminal that is closed), if it is not ignored, ends ctx, which drains; a second one ends the
// process at once.
func UntilSignal(run func(ctx context.Context) int) int {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	context.AfterFunc(ctx, stop) // restores the default action: a second signal kills
	return run(ctx)
}
