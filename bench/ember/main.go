// Command ember measures the embedded engine: exec to first token, tokens per
// second and CPU, for the shipped tiny model and for the 135M shape of SmolLM with
// random weights that it makes itself.
//
//	go run ./bench/ember                 # both, prints a table
//	go run ./bench/ember -engine ARGS    # only run the engine, as `thaw engine ember` does
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/thaw-dev/thaw/runtime/ember"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "-engine" {
		os.Exit(ember.Main(context.Background(), os.Args[2:], os.Getenv, os.Stdout, os.Stderr))
	}
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
