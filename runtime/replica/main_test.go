package replica

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/runtime/ember"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// The test binary is also the supervisor and the engine of these tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "test-supervisor":
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
			defer stop()
			orphan, _ := time.ParseDuration(os.Args[4])
			if err := supervisor.Run(ctx, supervisor.Options{Socket: os.Args[2], Dir: os.Args[3], Orphan: orphan}); err != nil {
				fmt.Fprintln(os.Stderr, "error:", err)
				os.Exit(1)
			}
			os.Exit(0)
		case "test-engine":
			os.Exit(fakeEngine(os.Args[2], os.Args[3], os.Args[4:]))
		case "engine": // ember, as the thaw program runs it
			os.Exit(ember.Main(context.Background(), os.Args[3:], os.Getenv, os.Stdout, os.Stderr))
		case "test-child":
			signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
			time.Sleep(5 * time.Minute)
			os.Exit(0)
		}
	}
	goleak.VerifyTestMain(m)
}

// fakeEngine is a small true engine: it listens, loads, answers with tokens
// and counts them. Modes: slow=DUR crash=TEXT exit=TEXT stubborn deaf fork
// chat nohealth plain (no metrics) first=HOST (listens there until a connection arrives)
// until=FILE (answers with errors until that exists).
func fakeEngine(port, name string, modes []string) int {
	mode := map[string]string{}
	for _, m := range modes {
		k, v, _ := strings.Cut(m, "=")
		mode[k] = v
	}
	has := func(k string) bool { _, ok := mode[k]; return ok }
	fmt.Println("fake engine", port, len(modes))
	if has("stubborn") {
		signal.Ignore(syscall.SIGTERM)
	}
	if has("fork") {
		c := exec.Command(os.Args[0], "test-child")
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			return 3
		}
		fmt.Println("child", c.Process.Pid)
	}
	if t, ok := mode["exit"]; ok {
		fmt.Fprintln(os.Stderr, t)
		return 1
	}
	if other := mode["first"]; other != "" {
		elsewhere, err := net.Listen("tcp", net.JoinHostPort(other, port))
		if err != nil {
			return 3
		}
		if _, err := elsewhere.Accept(); err != nil {
			return 3
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	var loaded atomic.Bool
	slow, _ := time.ParseDuration(mode["slow"])
	time.AfterFunc(slow, func() {
		if t, ok := mode["crash"]; ok {
			fmt.Fprintln(os.Stderr, t)
			os.Exit(1)
		}
		loaded.Store(true)
	})
	var running, tokens atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if !loaded.Load() || has("nohealth") {
			w.WriteHeader(503)
		}
	})
	if !has("plain") {
		mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "vllm:num_requests_running{model_name=%q} %d\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total %d\n",
				name, running.Load(), tokens.Load())
		})
	}
	answer := func(chat bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var q struct {
				Model  string `json:"model"`
				Max    int    `json:"max_tokens"`
				Stream bool   `json:"stream"`
			}
			if json.NewDecoder(r.Body).Decode(&q) != nil || q.Model != name {
				w.WriteHeader(404)
				return
			}
			if _, err := os.Stat(mode["until"]); err != nil && has("until") {
				http.Error(w, `{"error":{"message":"rpc error: EOF"}}`, 500)
				return
			}
			running.Add(1)
			defer running.Add(-1)
			for range q.Max {
				tokens.Add(1)
				if q.Stream {
					io.WriteString(w, "data: {}\n\n")
					w.(http.Flusher).Flush()
					select {
					case <-time.After(20 * time.Millisecond):
					case <-r.Context().Done():
						return
					}
				}
			}
			if chat {
				io.WriteString(w, `{"choices":[{"message":{"content":"Hi"}}]}`)
			} else {
				io.WriteString(w, `{"choices":[{"text":"Hi"}],"usage":{"completion_tokens":1}}`)
			}
		}
	}
	if has("chat") {
		mux.HandleFunc("POST /v1/chat/completions", answer(true))
	} else {
		mux.HandleFunc("POST /v1/completions", answer(false))
	}
	srv := &http.Server{Handler: mux}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		<-term
		srv.Close()
	}()
	srv.Serve(ln)
	if has("stubborn") {
		select {}
	}
	return 0
}
