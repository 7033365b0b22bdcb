package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// fakeEngine is a small OpenAI-compatible server for `engine: command`. It fails in ways
// that ember cannot be made to fail.
func fakeEngine(args []string) int {
	f := flag.NewFlagSet("fake", flag.ExitOnError)
	name := f.String("name", "", "")
	port := f.Int("port", 0, "")
	dies := f.String("dies", "", "file: exit while loading, with its text as the last words, as long as it exists")
	loads := f.String("loads", "", "file: not healthy while it is there")
	holds := f.String("holds", "", "file: a stream goes on after its first word when it is gone")
	takes := f.Duration("takes", 0, "how long an answer takes")
	mode := f.String("mode", "", "cut: close in the middle of an answer; half: end a stream without [DONE]; frame: an error frame, then "+
		"[DONE]; flood: more than a client reads; loud: a log longer than a pipe for each request")
	memory := f.String("memory", "", "file: memory that holds one engine; one that finds it taken ends as engines do for want of memory")
	reads := f.String("reads", "", "file: paths, one a line, that it tries to read, and tells of on stdout")
	f.Parse(args)
	if *reads != "" {
		list, err := os.ReadFile(*reads)
		if err != nil {
			fmt.Println("error:", err)
			return 1
		}
		for path := range strings.Lines(string(list)) {
			_, err := os.ReadFile(strings.TrimSpace(path))
			fmt.Println("read", err == nil, strings.TrimSpace(path))
		}
	}
	if *memory != "" {
		held, err := os.Open(*memory)
		if err == nil {
			defer held.Close()
			err = syscall.Flock(int(held.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "Traceback (most recent call last):\nMemoryError: Unable to allocate 2.00 GiB")
			return 1
		}
	}
	if *dies != "" {
		if b, err := os.ReadFile(*dies); err == nil {
			fmt.Fprintf(os.Stderr, "INFO loading\n%s\n", b)
			return 3
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(*loads); *loads != "" && err == nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	var broken atomic.Bool // its GPU is unusable
	mux.HandleFunc("POST /v1/", func(w http.ResponseWriter, r *http.Request) {
		if key := os.Getenv("FAKE_KEY"); key != "" && r.Header.Get("Authorization") != "Bearer "+key {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		body, _ := io.ReadAll(r.Body)
		if *mode == "loud" {
			fmt.Fprint(os.Stderr, strings.Repeat(strings.Repeat("x", 99)+"\n", 4000))
		}
		select {
		case <-r.Context().Done():
		case <-time.After(*takes):
		}
		if strings.Contains(string(body), `"crash-engine"`) {
			fmt.Fprintln(os.Stderr, "RuntimeError: this request is too much")
			os.Exit(3)
		}
		if strings.Contains(string(body), `"break-engine"`) || broken.Load() {
			broken.Store(true)
			http.Error(w, `{"error":{"message":"CUDA error: an illegal memory access was encountered"}}`, http.StatusInternalServerError)
			return
		}
		if strings.Contains(string(body), `"echo-body"`) {
			fmt.Fprintf(w, `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`, body)
			return
		}
		if strings.Contains(string(body), `"echo-id"`) {
			fmt.Fprintf(w, `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}]}`, strings.Join(r.Header.Values("X-Request-Id"), ","))
			return
		}
		if _, word, ok := strings.Cut(string(body), "backwards:"); ok {
			letters := []byte(word[:strings.IndexByte(word, '"')])
			slices.Reverse(letters)
			fmt.Fprintf(w, `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`, letters)
			return
		}
		if !strings.Contains(string(body), `"stream":true`) {
			if *mode == "cut" && !strings.Contains(string(body), `"max_tokens":1`) {
				w.Header().Set("Content-Length", "5000")
				io.WriteString(w, `{"id":"x",`)
				panic(http.ErrAbortHandler)
			}
			io.WriteString(w, `{"id":"x","object":"chat.completion","choices":[{"index":0,"text":"hi","message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		say := func(s string) {
			fmt.Fprintf(w, "data: %s\n\n", s)
			w.(http.Flusher).Flush()
		}
		say(`{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}`)
		for *holds != "" && r.Context().Err() == nil {
			if _, err := os.Stat(*holds); err != nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		switch *mode {
		case "cut":
			panic(http.ErrAbortHandler)
		case "half":
			return
		case "flood":
			chunk := fmt.Sprintf(`{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`, strings.Repeat("thaw ", 800))
			for r.Context().Err() == nil {
				say(chunk)
			}
			return
		case "frame":
			say(`{"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}`)
			say("[DONE]")
			return
		}
		say(`{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
		say("[DONE]")
	})
	_ = name
	s := &http.Server{Addr: fmt.Sprintf("127.0.0.1:%d", *port), Handler: mux, ReadHeaderTimeout: time.Minute}
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

// fakeModel returns a model file for the fake engine.
func fakeModel(name, flags, more string) string {
	argv := []string{os.Args[0], "fake", "--name", "{name}", "--port", "{port}"}
	argv = append(argv, strings.Fields(flags)...)
	return modelFile(name, "  engine: command\n  args: [\""+strings.Join(argv, `", "`)+"\"]\n"+indent(more))
}
