package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/bench/socket"
)

// benchEcho serves the echo server that sockets are measured beside, at --addr.
func benchEcho(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	f := flag.NewFlagSet("bench-echo", flag.ExitOnError)
	addr := f.String("addr", "", "")
	f.Parse(args)
	ln, err := net.Listen("tcp", *addr)
	if err == nil {
		err = socket.Echo(ctx, ln)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

// TestSocketBench: the parts of the benchmark that run the platform end with every answer
// checked, each socket closed by 1001, and the cold model READY at the submit.
func TestSocketBench(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.MkdirTemp("", "thaw") // short, for unix sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	r, err := socket.Run(t.Context(), socket.Options{
		Parts: map[string]bool{"idle": true, "typing": true, "submit": true, "cold": true}, Progress: func(string) {},
		Thaw: self, Engine: []string{self, "bench-engine"}, Echo: []string{self, "bench-echo"}, Dir: root,
		Intents: 10, Idle: []int{20}, Rounds: 1, Words: 100, Submits: 10, Starts: 1, Load: 50 * time.Millisecond, Typed: 500 * time.Millisecond,
	}, socket.Result{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Idle) != 2 || r.Idle[0].GoneAway != 20 || len(r.Typing) != 2 || r.Typing[0].Words < 100 || r.Typing[1].Words < 100 {
		t.Errorf("%+v %+v", r.Idle, r.Typing)
	}
	if len(r.Submits) != 3 || r.Submits[0].First.N != 10 || r.Cold == nil || r.Cold.Ahead.N != 1 || r.Cold.Plain.N != 1 || len(r.Goals) != 4 {
		t.Errorf("%+v %+v %+v", r.Submits, r.Cold, r.Goals)
	}
}
