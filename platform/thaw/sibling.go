package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// terminateWait bounds the time between SIGTERM and SIGKILL.
const terminateWait = 10 * time.Second

// siblingProgram runs the program name from this program's folder, not from PATH, where it
// may be of another version. Its exit code is returned in the error.
func siblingProgram(name string) func(context.Context, []string, io.Reader, io.Writer, io.Writer) error {
	return func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("where %s lies: %w", name, err)
		}
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		return runProgram(ctx, filepath.Join(filepath.Dir(self), name), args, stdin, stdout, stderr)
	}
}

func runProgram(ctx context.Context, path string, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = terminateWait
	err := cmd.Run()
	if errors.Is(err, fs.ErrNotExist) {
		return &kit.Error{Exit: kit.ExitFailed, What: fmt.Sprintf("the program for clusters is not beside this one: there is no %s", path),
			Hint: "make build makes both; keep them in one folder"}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return &kit.Error{Exit: exit.ExitCode()} // the program has printed the cause
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}
