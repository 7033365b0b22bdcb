package kit

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// UntilSignal runs a program and returns its exit code. The first SIGINT or SIGTERM ends
// ctx, which drains; a second one ends the process at once.
func UntilSignal(run func(ctx context.Context) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // restores the default action: a second signal kills
	return run(ctx)
}
