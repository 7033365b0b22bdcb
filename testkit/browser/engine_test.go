package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

// repeats is how often the engine says all it has to say, where it is asked at length.
const repeats = 100

// runEngine is a small OpenAI-compatible engine that loads for a while: engine PORT LOADS. With
// a negative time it ends with an error.
func runEngine(args []string) {
	loads, err := time.ParseDuration(args[1])
	if err != nil {
		panic(err)
	}
	if loads < 0 {
		fmt.Println("ERROR the tokenizer of this model is not known")
		os.Exit(1)
	}
	ready := time.Now().Add(loads)
	fmt.Println("INFO the engine begins to load")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		if time.Now().Before(ready) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, `{"object":"list","data":[]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Stream    bool `json:"stream"`
			MaxTokens int  `json:"max_tokens"`
			Messages  []struct {
				Content string `json:"content"`
			} `json:"messages"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		fmt.Println("INFO a request")
		words := strings.Fields("The weights are read once and then they stay warm until nothing asks for them any more")
		if n := len(q.Messages); n > 0 && strings.Contains(q.Messages[n-1].Content, "<") { // markup comes back, and into the log
			words = strings.Fields(q.Messages[n-1].Content)
			fmt.Println(q.Messages[n-1].Content)
		}
		if n := len(q.Messages); n > 0 && strings.Contains(q.Messages[n-1].Content, "at length") {
			words = slices.Repeat(words, repeats)
		}
		if q.MaxTokens > 0 {
			words = words[:min(len(words), q.MaxTokens)]
		}
		usage := fmt.Sprintf(`{"prompt_tokens":5,"completion_tokens":%d,"total_tokens":%d}`, len(words), 5+len(words))
		if !q.Stream {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":%s}`, strings.Join(words, " "), usage)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		send := func(choices, more string) {
			fmt.Fprintf(w, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[%s]%s}\n\n", choices,
				more)
			w.(http.Flusher).Flush()
		}
		for _, word := range words {
			send(fmt.Sprintf(`{"index":0,"delta":{"content":%q},"finish_reason":null}`, word+" "), "")
			time.Sleep(20 * time.Millisecond) // an engine takes a while for a token
		}
		send(`{"index":0,"delta":{},"finish_reason":"stop"}`, "")
		send("", `,"usage":`+usage)
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
	if err := http.ListenAndServe("127.0.0.1:"+args[0], mux); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
