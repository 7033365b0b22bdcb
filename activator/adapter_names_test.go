package activator

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit/rude"
)

// TestAdapterNameInAnswers: an engine writes the adapter's own name; the client gets the
// public one, in plain answers and in each chunk, also of a stream that was held.
func TestAdapterNameInAnswers(t *testing.T) {
	chunk := strings.ReplaceAll(event1+event2+event3, `"id":"c"`, `"id":"c","model":"pirate"`)
	plain := strings.Replace(jsonAnswer, `"id"`, `"model" : "pirate","id"`, 1)
	public := func(s string) string { return strings.ReplaceAll(s, `"pirate"`, `"tiny:pirate"`) }
	message := "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"pirate\",\"content\":[]}}\n\nevent: " +
		"message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	for _, x := range []struct {
		name, model, path string
		stream            bool
		answer            rude.Answer
		want              string
	}{
		{"plain", "tiny:pirate", "/v1/chat/completions", false, rude.Plain(200, "application/json", plain), public(plain)},
		{"plain, with the team", "default/tiny:pirate", "/v1/chat/completions", false, rude.Plain(200, "application/json", plain), public(plain)},
		{"plain, by a Router", "auto", "/v1/chat/completions", false, rude.Plain(200, "application/json", plain), public(plain)},
		{"plain, byte by byte, without a type", "tiny:pirate", "/v1/chat/completions", false, rude.Chunked(200, "", true, strings.Split(plain, "")...), public(plain)},
		{"plain, large", "tiny:pirate", "/v1/chat/completions", false, rude.Plain(200, "application/json", strings.Replace(plain, `"hi"`, `"`+strings.Repeat("h", 2<<20)+`"`, 1)), public(strings.Replace(plain, `"hi"`, `"`+strings.Repeat("h", 2<<20)+`"`, 1))},
		{"stream", "tiny:pirate", "/v1/chat/completions", true, rude.Chunked(200, "text/event-stream", true, chunk, eventDone), public(chunk) + eventDone},
		{"stream, by a Router", "auto", "/v1/chat/completions", true, rude.Chunked(200, "text/event-stream", true, chunk, eventDone), public(chunk) + eventDone},
		{"stream, byte by byte, without a type", "tiny:pirate", "/v1/chat/completions", true, rude.Chunked(200, "", true, strings.Split(chunk+eventDone, "")...), public(chunk) + eventDone},
		{"stream of messages", "tiny:pirate", "/v1/messages", true, rude.Chunked(200, "text/event-stream", true, message), public(message)},
		{"audio", "tiny:pirate", "/v1/audio/speech", false, rude.Chunked(200, "audio/mpeg", true, "data: {\"model\":\"pirate\"}"), "data: {\"model\":\"pirate\"}"},
		{"an error", "tiny:pirate", "/v1/chat/completions", false, rude.Plain(400, "application/json", `{"error":{"message":"no"},"model":"pirate"}`), `{"error":{"message":"no"},"model":"pirate"}`},
		{"no adapter", "tiny", "/v1/chat/completions", false, rude.Plain(200, "application/json", plain), plain},
	} {
		for _, held := range []bool{false, true} {
			t.Run(x.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					_, w := newAdapterEnv(t)
					w.engineAt("10.0.0.1:1", func(c net.Conn, _ *http.Request, _ string) bool { return x.answer.Play(c) })
					ready := withAdapters(readyAt(testFunction("tiny"), 8, "10.0.0.1:1"), []string{"pirate"})
					w.act.SetRouters([]*functions.Router{testRouter("tiny:pirate")}, nil)
					if held {
						w.act.Publish(withAdapters(testFunction("tiny")))
						w.onWake = func() { time.Sleep(50 * time.Second); w.act.Publish(ready) }
					} else {
						w.act.Publish(ready)
					}
					body := `{"model":"` + x.model + `","messages":[{"role":"user","content":"hello"}]}`
					if x.stream {
						body = strings.Replace(body, `"messages"`, `"stream":true,"messages"`, 1)
					}
					got := w.post(x.path, body)
					events := plainEvents(got.body)
					if held && x.stream { // a chunk that adds nothing has the name, too
						if strings.Contains(events, `"model":"pirate"`) {
							t.Errorf("%q", events)
						}
						for noop := ""; strings.HasPrefix(events, `data: {"id":""`); {
							noop, events, _ = strings.Cut(events, "\n\n")
							if !strings.Contains(noop, `"model":"tiny:pirate"`) {
								t.Errorf("%q", noop)
							}
						}
					}
					if events != x.want || got.err != nil {
						t.Errorf("%d %v\ngot  %.300q\nwant %.300q", got.status, got.err, events, x.want)
					}
				})
			})
		}
	}
}
