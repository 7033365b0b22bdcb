package socket

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coder/websocket"

	"github.com/thaw-dev/thaw/activator/snapshot"
)

// BenchmarkGeneration is an answer of 64 tokens that the engine sends in one write.
func BenchmarkGeneration(b *testing.B) {
	var body []byte
	for i := range 64 {
		body = fmt.Appendf(body,
			"data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"tiny\","+
				"\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token%d\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n", i)
	}
	body = append(body, "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: "+
		"{\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":64,\"total_tokens\":67}}\n\ndata: [DONE]\n\n"...)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		w.Write(body)
	}))
	b.Cleanup(engine.Close)
	r := newRig(b, nil)
	r.publishAt("tiny", []snapshot.Replica{{ID: "r1", Endpoint: engine.URL, Slots: 4}})
	c := r.connect("/ws/me")
	n := 0
	for b.Loop() {
		if n++; n%150 == 0 { // below the messages of a second
			c.Close(websocket.StatusNormalClosure, "")
			c = r.connect("/ws/me")
		}
		if err := c.Write(context.Background(), websocket.MessageText, []byte(`{"type":"submit","text":"where is the answer to this question"}`)); err != nil {
			b.Fatal(err)
		}
		c.until("generation_complete")
	}
}
