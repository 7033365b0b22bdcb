package kit

import (
	"context"
	"errors"
	"io"
	"os/signal"
	"syscall"
	"testing"
)

// TestFailureIsNoSuccess: an Error without a code is a failure.
func TestFailureIsNoSuccess(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, ExitOK},
		{errors.New("x"), ExitFailed},
		{&Error{What: "x"}, ExitFailed},
		{&Error{Err: errors.New("x")}, ExitFailed},
		{&Error{Exit: ExitDenied, What: "x"}, ExitDenied},
		{&Error{Exit: ExitUsage}, ExitUsage}, // the cause has been printed
	} {
		if got := NewTerminal(nil, io.Discard, io.Discard, func(string) string { return "" }).Report(t.Context(), c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

// TestSignals: each signal that asks a program to end, a closed terminal's too, ends its context,
// so that it drains.
func TestSignals(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if signal.Ignored(s) {
			t.Logf("%s is ignored here", s)
			continue
		}
		if exit := UntilSignal(func(ctx context.Context) int {
			if err := syscall.Kill(syscall.Getpid(), s); err != nil {
				t.Error(err)
				return 1
			}
			<-ctx.Done()
			return 7
		}); exit != 7 {
			t.Errorf("%s: exit %d", s, exit)
		}
	}
	signal.Ignore(syscall.SIGHUP) // as nohup does
	defer signal.Reset(syscall.SIGHUP)
	UntilSignal(func(context.Context) int {
		if !signal.Ignored(syscall.SIGHUP) {
			t.Error("a program of nohup would end with its terminal")
		}
		return 0
	})
}
