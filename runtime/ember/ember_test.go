package ember

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/runtime/ember/mint"
)

const sample = `The model sleeps at rest until somebody asks. A request comes in, the engine starts, and an answer is told word by word. Cold starts are short when the weights are near. One two three four five six seven eight nine ten. It is warm today and cold at night; don't worry, we'll see.`

var shape = mint.Shape{Hidden: 64, Inter: 128, Layers: 2, Heads: 4, KVHeads: 2, Learned: 300, MaxPos: 512}

// folder makes a small random checkpoint.
func folder(t testing.TB, s mint.Shape) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := mint.Folder(dir, s, sample, 7); err != nil {
		t.Fatal(err)
	}
	return dir
}

// start runs an engine and returns its address.
func start(t testing.TB, o Options) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	addr := make(chan string, 1)
	ended := make(chan error, 1)
	o.Listening = func(a string) { addr <- a }
	go func() { ended <- Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the engine did not end")
		}
	})
	url := "http://" + <-addr
	deadline := time.Now().Add(10 * time.Second)
	for {
		r, err := http.Get(url + "/health")
		if err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return url
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the engine did not become ready")
		}
	}
}

func post(t testing.TB, url, body string) (int, string) {
	t.Helper()
	r, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestTry(t *testing.T) {
	url := start(t, Options{Model: folder(t, shape), Names: []string{"tiny"}})
	for _, c := range [][2]string{
		{"/v1/completions", `{"prompt":"The model","max_tokens":5,"temperature":0,"logprobs":2}`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":5,"temperature":0,"logprobs":true,"top_logprobs":2}`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":5,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`},
		{"/v1/embeddings", `{"input":["a b","c"],"encoding_format":"base64"}`},
		{"/tokenize", `{"prompt":"hello world","return_token_strs":true}`},
		{"/detokenize", `{"tokens":[40,41,42]}`},
		{"/v1/completions", `{"prompt":"x","model":"y"}`},
		{"/v1/completions", `{"prompt":"x","temperature":"y"}`},
		{"/nope", `{}`},
		{"/health", `{}`},
	} {
		code, b := post(t, url+c[0], c[1])
		t.Log(c[0], code, b)
	}
	r, _ := http.Get(url + "/metrics")
	b, _ := io.ReadAll(r.Body)
	r.Body.Close()
	t.Log(string(b)[:1500])
}
