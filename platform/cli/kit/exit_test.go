package kit

import (
	"errors"
	"io"
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
