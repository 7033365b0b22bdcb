package activator

import (
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

// TestBreakInAnEvent: wherever an engine's stream breaks, in a short event, in one too long to
// be kept or behind it, the error is an event of its own, and what came before is whole or cut,
// but not joined with it.
func TestBreakInAnEvent(t *testing.T) {
	long := `data: {"id":"c","choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", maxEvent+maxEvent/2)
	for name, pieces := range map[string][]string{
		"behind an event":         {event1},
		"in an event":             {event1, event1[:len(event1)/2]},
		"in a long event":         {event1, long},
		"in pieces of a long":     {event1, long[:maxEvent/2], long[maxEvent/2 : maxEvent+5], long[maxEvent+5:]},
		"behind a long one":       {event1, long, `"},"finish_reason":null}]}` + "\n\n"},
		"behind one after it":     {event1, long, `"},"finish_reason":null}]}` + "\n\n", event1},
		"in a line end of a long": {event1, long, `"},"finish_reason":null}]}` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				w.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool {
					writeString(c, chunkHead)
					for _, p := range pieces {
						chunk(c, p)
					}
					return false
				})
				w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
				r := w.post("/v1/chat/completions", streamRequest)
				events := strings.Split(strings.TrimSuffix(r.body, "\n\n"), "\n\n")
				data, ok := strings.CutPrefix(strings.TrimLeft(events[len(events)-1], "\n"), "data: ")
				var last struct {
					Error struct{ Code string }
				}
				err := json.Unmarshal([]byte(data), &last)
				if !ok || err != nil || last.Error.Code != "engine_crashed" || !strings.HasPrefix(r.body, event1) {
					t.Errorf("%v, the last event is %.200q", err, events[len(events)-1])
				}
			})
		})
	}
}
