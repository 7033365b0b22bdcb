package main

import (
	"context"
	"io"

	"github.com/thaw-dev/thaw/bench"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

func runBench(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if code := bench.Main(ctx, args, stdout, stderr); code != 0 {
		return &kit.Error{Exit: code} // the bench has printed the cause
	}
	return nil
}
