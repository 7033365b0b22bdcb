package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/bench"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/thaw-bench/socket"
)

const aboutSocket = `Measures typing-time sessions, beside a bare echo server of the same WebSocket
library. Writes socket.json and socket.md. Needs Linux for processor time and memory.

Parts (--only): intents  a decision at a word, with 150 intents; the right intent on
                         clinc-train.jsonl and clinc-val.jsonl of --texts
                idle     memory of 1,000, 5,000 and 10,000 idle sockets, and their end;
                         as many open files are needed in each of two processes
                typing   processor time per typed word
                submit   first token and processor time of a generation, beside the
                         same request over HTTP
                cold     a cold model of 3 s whose text is typed for 5 s

Examples:
  bin/thaw-bench socket --texts DIR --out bench/results
  bin/thaw-bench socket --only typing
  bin/thaw-bench socket --quick
`

func runSocket(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	f := bench.Flags("socket", aboutSocket, stderr)
	quick := f.Bool("quick", false, "little of everything: shows that it works, its numbers mean nothing")
	only := f.String("only", strings.Join(socket.Parts, ","), "parts to run")
	texts := f.String("texts", os.Getenv("THAW_TEXTS"), "folder of the texts (or THAW_TEXTS)")
	thaw := f.String("thaw", filepath.Join("bin", "thaw"), "thaw to measure")
	reportFlags := bench.ReportFlags(f)
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	o := socket.Options{Texts: *texts, Intents: 150, Decisions: 20_000, Idle: []int{1000, 5000, 10_000}, Rounds: 5, Words: 8000, Submits: 400,
		Starts: 3, Load: 3 * time.Second, Typed: 5 * time.Second, Progress: func(s string) { fmt.Fprintln(stderr, s) }}
	if *quick {
		o.Texts, o.Decisions, o.Idle, o.Rounds, o.Words, o.Submits = "", 200, []int{100}, 1, 300, 20
		o.Starts, o.Load, o.Typed = 1, 200*time.Millisecond, time.Second
	}
	if o.Parts, err = bench.SelectParts(stderr, *only, socket.Parts); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if o.Thaw, err = filepath.Abs(*thaw); err != nil {
		return err
	}
	dir, done, err := bench.Scratch(stderr)
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	o.Dir, o.Engine, o.Echo = dir, []string{self, "engine"}, []string{self, "echo"}
	r := socket.Result{Load: loadAverage(), Provenance: report.NewProvenance(socket.Kind, bench.CommandLine("socket", args), time.Now())}
	if r, err = socket.Run(ctx, o, r); err != nil {
		return err
	}
	return reportFlags.Write("socket", r, r.Goals, stdout, stderr)
}

func runEcho(ctx context.Context, args []string, _, stderr io.Writer) error {
	f := bench.Flags("echo", "A bare echo server of WebSockets (for the benches).\n", stderr)
	addr := f.String("addr", "127.0.0.1:8002", "address to listen on")
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	return socket.Echo(ctx, ln)
}
