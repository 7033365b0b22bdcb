package activator

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A request that its engine reads and does not answer is sent twice at most, whether the
// engine closes at once or after work, on connections that were used before or not.
func TestNeverSentThreeTimes(t *testing.T) {
	for _, works := range [][2]time.Duration{{0, 0}, {2 * time.Second, 2 * time.Second}, {2 * time.Second, 0}} { // of the first, and of later ones
		for _, replicas := range [][]string{{"e:1"}, {"e:1", "e:2"}, {"e:1", "e:2", "e:3"}} {
			t.Run(fmt.Sprint(works, replicas), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newTestEnv(t, nil)
					var tries atomic.Int32
					var engines []*engine
					for _, addr := range replicas {
						engines = append(engines, w.engineAt(addr, func(c net.Conn, r *http.Request, body string) bool {
							if strings.Contains(body, "poison") {
								time.Sleep(works[min(tries.Add(1)-1, 1)])
								return false
							}
							time.Sleep(time.Second) // so that requests spread over the replicas
							return goodAnswer(c, r, body)
						}))
					}
					w.act.Publish(readyAt(testFunction("tiny"), 4, replicas...))
					answers := make(chan result)
					for range 8 { // connections that are kept, at each replica
						go func() { answers <- w.post("/v1/chat/completions", plainRequest) }()
					}
					for range 8 {
						if r := <-answers; r.status != 200 {
							t.Fatalf("%+v", r)
						}
					}
					r := w.post("/v1/chat/completions", strings.Replace(plainRequest, "hello", "poison", 1))
					sent := 0
					for _, e := range engines {
						for _, s := range e.requests() {
							if strings.Contains(s.body, "poison") {
								sent++
							}
						}
					}
					if r.status != 502 || sent != 2 {
						t.Errorf("status %d %s, sent %d times", r.status, r.body, sent)
					}
				})
			})
		}
	}
}

// Bytes that no request asked for are counted with the replica's next answer and logged
// once.
func TestUnsolicitedIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		strays := 2
		w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			stray := ""
			if strays > 0 {
				stray = "and more"
			}
			strays--
			return writeString(c,
				fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s%s", len(jsonAnswer), jsonAnswer, stray))
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		for range 4 {
			if r := w.post("/v1/chat/completions", plainRequest); r.status != 200 || r.body != jsonAnswer {
				t.Errorf("%+v", r)
			}
		}
		if m := metric(t, w, "thaw_engine_errors_total"); m != "kind=\"unsolicited\" model=\"tiny\" team=\"default\" 2\n" {
			t.Error(m)
		}
		if n := strings.Count(w.logs.String(), "wrote bytes that no request asked for"); n != 1 ||
			!strings.Contains(w.logs.String(), "replica=e:1") {
			t.Errorf("%d lines in %s", n, w.logs)
		}
	})
}

// A redirect that is not followed is an error that names it.
func TestRedirectIsNamed(t *testing.T) {
	for _, body := range []string{plainRequest, streamRequest} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			e := w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
				return writeString(c, "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://other:1/v1/chat/completions\r\nContent-Length: 0\r\n\r\n")
			})
			w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
			r := w.post("/v1/chat/completions", body)
			if r.status != 502 || r.code() != "internal_error" || !strings.Contains(r.body, "307") ||
				!strings.Contains(r.body, "http://other:1/v1/chat/completions") || len(e.requests()) != 1 {
				t.Errorf("%d requests, %+v", len(e.requests()), r)
			}
		})
	}
}
