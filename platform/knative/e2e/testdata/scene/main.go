// Scene is the engine of the scenarios: it asks the test whether it may start, and holds
// marked requests until the test ends them.
//
//	scene PORT MODEL URL
//
//	URL/start?model=M&pod=P    409: the start fails with the body as its cause
//	URL/hold?model=M&id=N      answers when request N is to end
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: scene PORT MODEL URL")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var held = regexp.MustCompile(`"hold ([0-9]+)"`)

func serve(port, model, test string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	pod, err := os.Hostname()
	if err != nil {
		return err
	}
	if err := ask(ctx, test+"/start?"+url.Values{"model": {model}, "pod": {pod}}.Encode()); err != nil {
		return err
	}
	answer := func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if m := held.FindSubmatch(b); m != nil {
			if err := ask(r.Context(), test+"/hold?"+url.Values{"model": {model}, "id": {string(m[1])}}.Encode()); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"x","object":"text_completion","model":"`+model+`","choices":[{"index":0,"text":"hi","finish_reason":"length","message":{"role":"assistant","content":"hi"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /v1/completions", answer)
	mux.HandleFunc("POST /v1/chat/completions", answer)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"object":"list","data":[{"id":"`+model+`","object":"model"}]}`)
	})
	server := &http.Server{Addr: "127.0.0.1:" + port, Handler: mux}
	context.AfterFunc(ctx, func() { server.Close() })
	fmt.Println("engine of", model, "in", pod)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ask returns nil once the test allows it, else the test's answer as an error.
func ask(ctx context.Context, at string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(b)))
	}
	return err
}
