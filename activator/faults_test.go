package activator

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// One engine, the stream cut at every byte of its body: the client never sees
// a clean end without an error frame, and never a torn event.
func TestEngineDiesAtEveryByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		cut := 0
		w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			writeString(c, chunkHead)
			if cut > 0 {
				chunk(c, streamed[:cut])
			}
			return false
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		for cut = 1; cut <= len(streamed); cut++ {
			time.Sleep(2 * time.Second) // the cool-down of the replica
			r := w.post("/v1/chat/completions", strings.Replace(streamRequest, "hello", fmt.Sprint("hello ", cut), 1))
			if r.status != 200 {
				t.Fatalf("cut %d: %+v", cut, r)
			}
			if cut == len(streamed) {
				if r.body != streamed || r.err != nil {
					t.Errorf("cut %d: all of it had come: %q", cut, r.body)
				}
				continue
			}
			whole := ""
			if i := strings.LastIndex(streamed[:cut], "\n\n"); i >= 0 {
				whole = streamed[:i+2]
			}
			rest, ok := strings.CutPrefix(r.body, whole)
			if !ok || !strings.HasPrefix(rest, `data: {"error":{`) || !strings.HasSuffix(rest, "}}\n\n") || strings.Contains(rest, "[DONE]") || r.code() != "engine_crashed" || r.err != io.ErrUnexpectedEOF {
				t.Fatalf("cut %d: %q", cut, r.body)
			}
		}
	})
}

func TestStreamEndsWithoutDone(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want string // code of the frame, "" for success
	}{
		"no finish":       {event1 + event2, "engine_crashed"},
		"finish, no done": {event1 + event3, ""},
		"no blank line":   {event1 + event3 + "data: [DONE]\n", ""},
		"nothing at all":  {"", "engine_crashed"},
		"comment only":    {": hello\n", "engine_crashed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				w.engineAt("e:1", func(conn net.Conn, r *http.Request, body string) bool {
					writeString(conn, chunkHead)
					if c.body != "" {
						chunk(conn, c.body)
					}
					return writeString(conn, "0\r\n\r\n")
				})
				w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
				r := w.post("/v1/chat/completions", streamRequest)
				if r.code() != c.want || (r.err == nil) != (c.want == "" || r.status != 200) {
					t.Fatalf("%+v", r)
				}
				if c.want == "" && r.body != event1+event3+eventDone && r.body != c.body+"\n" {
					t.Fatalf("%q", r.body)
				}
			})
		})
	}
}

func TestEnginesOwnErrorFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		body := event1 + "data: {\"error\": {\"message\": \"boom\", \"code\": 500}}\n\n"
		w.engineAt("e:1", func(c net.Conn, r *http.Request, _ string) bool {
			writeString(c, chunkHead)
			chunk(c, body+eventDone)
			return writeString(c, "0\r\n\r\n")
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		r := w.post("/v1/chat/completions", streamRequest)
		if r.body != body || r.err != io.ErrUnexpectedEOF {
			t.Fatalf("%+v", r)
		}
		if m := metric(t, w, "thaw_requests_total"); !strings.Contains(m, `code="502"`) || strings.Contains(m, `code="200"`) {
			t.Error("it counts as failed:", m)
		}
	})
}

// TestPlainEngine: a replica whose endpoint is https gets no request without TLS.
func TestPlainEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool {
			t.Error("the engine got a request without TLS")
			return false
		})
		f := readyAt(testFunction("tiny"), 4, "e:1")
		f.Replicas[0].Endpoint = "https://e:1/replicas/a"
		w.act.Publish(f)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if r := w.do(ctx, "POST", "/v1/chat/completions", streamRequest); r.status == 200 {
			t.Errorf("%+v", r)
		}
	})
}

// Before the first byte a request is tried once more, on another replica if there is one,
// and the platform is asked to look at the broken one.
func TestRetryBeforeTheFirstByte(t *testing.T) {
	failures := map[string]func(net.Conn, *http.Request, string) bool{
		"unread": func(net.Conn, *http.Request, string) bool { return false },
		"half a head": func(c net.Conn, _ *http.Request, _ string) bool {
			writeString(c, "HTTP/1.1 200 OK\r\nContent-")
			return false
		},
		"head only": func(c net.Conn, _ *http.Request, _ string) bool {
			writeString(c, chunkHead)
			return false
		},
		"no http": func(c net.Conn, _ *http.Request, _ string) bool { writeString(c, "SSH-2.0-x\r\n\r\n"); return false },
	}
	for name, die := range failures {
		for _, body := range []string{streamRequest, plainRequest} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newTestEnv(t, nil)
					var mu sync.Mutex
					tries := 0
					failsOnce := func(c net.Conn, r *http.Request, body string) bool {
						mu.Lock()
						tries++
						n := tries
						mu.Unlock()
						if n == 1 {
							return die(c, r, body)
						}
						return goodAnswer(c, r, body)
					}
					w.engineAt("e:1", failsOnce)
					w.engineAt("e:2", failsOnce)
					w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1", "e:2"))
					r := w.post("/v1/chat/completions", body)
					if r.status != 200 || r.err != nil || r.code() != "" {
						t.Fatalf("%+v", r)
					}
					if tries != 2 || len(w.engineRequests()) != 1 || r.took > time.Second {
						t.Fatalf("%d tries, asks %v, took %v", tries, w.engineBodies, r.took)
					}
				})
				synctest.Test(t, func(t *testing.T) {
					w := newTestEnv(t, nil)
					e := w.engineAt("e:1", die)
					w.engineAt("e:2", die)
					w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1", "e:2"))
					r := w.post("/v1/chat/completions", body)
					if r.status != 502 || r.code() != "engine_crashed" || r.head.Get("x-should-retry") != "false" {
						t.Fatalf("%+v", r)
					}
					if n := len(e.requests()); n > 1 {
						t.Fatalf("one replica was tried %d times", n)
					}
				})
				for fails, status := range map[int]int{1: 200, 9: 502} { // where there is no other, it is asked again once
					synctest.Test(t, func(t *testing.T) {
						w := newTestEnv(t, nil)
						tries := 0
						e := w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
							if tries++; tries <= fails {
								return die(c, r, body)
							}
							return goodAnswer(c, r, body)
						})
						w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
						r := w.post("/v1/chat/completions", body)
						if r.status != status || r.took != admission.CoolDown || len(e.requests()) != 2 {
							t.Fatalf("%d requests, %+v", len(e.requests()), r)
						}
						if asks := w.engineRequests(); len(asks) != min(fails, 2) {
							t.Fatalf("the platform was asked to look: %q", asks)
						}
					})
				}
			})
		}
	}
}

// The only replica died at rest: the request waits for the platform to bring
// another, and is not answered with an error.
func TestDeadReplicaIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:2", goodAnswer)
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1")) // no engine listens there
		go func() {
			time.Sleep(100 * time.Millisecond)
			w.act.Publish(testFunction("tiny"))
			time.Sleep(2 * time.Second)
			w.act.Publish(readyAt(testFunction("tiny"), 4, "e:2"))
		}()
		r := w.post("/v1/chat/completions", plainRequest)
		if r.status != 200 || r.took != 2100*time.Millisecond {
			t.Fatalf("%+v", r)
		}
		if len(w.engineRequests()) != 1 || !strings.Contains(w.engineRequests()[0], "refuses connections") {
			t.Fatal(w.engineRequests())
		}
	})
}

func TestEngineDiesInResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", func(c net.Conn, r *http.Request, _ string) bool {
			writeString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"id\":")
			return false
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		const count = "X-Stainless-Retry-Count"
		for _, x := range []struct {
			head  []string
			again string
		}{{nil, "true"}, {[]string{count, "0"}, "true"}, {[]string{count, "1"}, "false"}} {
			r := w.post("/v1/chat/completions", plainRequest, x.head...)
			if r.status != 502 || r.code() != "engine_crashed" || r.head.Get("x-should-retry") != x.again {
				t.Fatalf("%v: %+v", x.head, r)
			}
			time.Sleep(2 * time.Second)
		}
		if len(w.engineRequests()) != 3 {
			t.Fatal("asks", w.engineRequests())
		}
	})
}

// An answer too large to keep is cut, never ended cleanly.
func TestLargePlain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		all := true
		body := `{"data":"` + strings.Repeat("x", 3<<20) + `","usage":{"prompt_tokens":7,"completion_tokens":0}}`
		w.engineAt("e:1", func(c net.Conn, r *http.Request, _ string) bool {
			writeString(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body)))
			if !all {
				writeString(c, body[:2<<20])
				return false
			}
			return writeString(c, body)
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		if r := w.post("/v1/embeddings", `{"model":"tiny","input":"x"}`); r.body != body || r.err != nil {
			t.Fatalf("%d bytes, %v", len(r.body), r.err)
		}
		if m := metric(t, w, "thaw_tokens_total"); !strings.Contains(m, "prompt") || !strings.Contains(m, "7") {
			t.Error(m)
		}
		all = false
		if r := w.post("/v1/embeddings", `{"model":"tiny","input":"x"}`); r.err == nil {
			t.Fatal("a clean end of a broken answer")
		}
	})
}

// An engine that accepts and says nothing is left when its silence has lasted too long.
func TestSilentEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", func(c net.Conn, r *http.Request, _ string) bool {
			io.Copy(io.Discard, c)
			return false
		})
		f := testFunction("tiny")
		w.act.Publish(readyAt(f, 4, "e:1"))
		r := w.post("/v1/chat/completions", streamRequest)
		if r.status != 200 || r.code() != "engine_hung" {
			t.Fatalf("%+v", r)
		}
		if r.took < 4*time.Minute || r.took > 4*time.Minute+5*time.Second {
			t.Error("two tries of two minutes:", r.took)
		}
		if !strings.Contains(r.body, ": thaw state=ready\n") {
			t.Error("comments while the engine is silent", r.body)
		}
	})
}

// It spoke and fell silent: the last bound.
func TestStreamStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", func(c net.Conn, r *http.Request, _ string) bool {
			writeString(c, chunkHead)
			chunk(c, event1)
			io.Copy(io.Discard, c)
			return false
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		r := w.post("/v1/chat/completions", streamRequest)
		if r.code() != "engine_hung" || r.took < 5*time.Minute || r.took > 5*time.Minute+40*time.Second || !strings.HasPrefix(r.body, event1) {
			t.Fatalf("%+v", r)
		}
	})
}

// A stream is as long as its tokens flow: the bound of silence begins anew with each piece.
func TestLongStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", func(c net.Conn, r *http.Request, _ string) bool {
			writeString(c, chunkHead)
			chunk(c, event1)
			for range 20 {
				time.Sleep(30 * time.Second)
				if !chunk(c, event2) {
					return false
				}
			}
			chunk(c, event3)
			chunk(c, eventDone)
			return writeString(c, "0\r\n\r\n")
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		if r := w.post("/v1/chat/completions", streamRequest); r.status != 200 || r.err != nil || !strings.HasSuffix(r.body, eventDone) {
			t.Fatalf("cut after %v: %s", r.took, r.code())
		}
	})
}

// So is a plain answer that is too large to be kept.
func TestLongPlain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		body := `{"data":"` + strings.Repeat("x", 3<<20) + `"}`
		w.engineAt("e:1", func(c net.Conn, r *http.Request, _ string) bool {
			writeString(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body)))
			writeString(c, body[:2<<20])
			for i := range 20 {
				time.Sleep(time.Minute)
				if !writeString(c, body[2<<20+i:2<<20+i+1]) {
					return false
				}
			}
			return writeString(c, body[2<<20+20:])
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		if r := w.post("/v1/embeddings", `{"model":"tiny","input":"x"}`); r.body != body || r.err != nil {
			t.Fatalf("%d bytes after %v, %v", len(r.body), r.took, r.err)
		}
	})
}

func TestEngineRefusesHeldStream(t *testing.T) {
	refusal := `{"error":{"message":"too long","type":"BadRequestError","param":"input_tokens","code":400}}`
	answer := func(c net.Conn, r *http.Request, _ string) bool {
		return writeString(c,
			fmt.Sprintf("HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(refusal), refusal))
	}
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", answer)
		w.act.Publish(testFunction("tiny"))
		w.onWake = func() { time.Sleep(5 * time.Second); w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1")) }
		r := w.post("/v1/chat/completions", streamRequest)
		if got := plainEvents(r.body); r.status != 200 || got != "data: "+refusal+"\n\n" || r.err != io.ErrUnexpectedEOF {
			t.Fatalf("%+v", r)
		}
		if r := w.post("/v1/chat/completions", streamRequest); r.status != 400 || r.body != refusal {
			t.Fatalf("not held, so the real status: %+v", r)
		}
	})
}

// A client that leaves is forgotten at once, waiting or streaming.
func TestClientDisconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.act.Publish(testFunction("tiny"))
		for _, body := range []string{plainRequest, streamRequest} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			r := w.do(ctx, "POST", "/v1/chat/completions", body)
			cancel()
			if r.err == nil {
				t.Fatalf("%+v", r)
			}
			time.Sleep(time.Second)
			if l := w.act.names.table.Lookup(testFunction("tiny").Name).Data.queue.Load(time.Now()); l.Queued != 0 || l.Bytes != 0 {
				t.Fatalf("a second later the queue holds %+v", l)
			}
		}
		if w.count(&w.nudges) != 2 || w.count(&w.wakes) != 2 {
			t.Fatalf("%d nudges, %d wakes: the last waiting request left, twice", w.count(&w.nudges), w.count(&w.wakes))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		left := make(chan time.Duration, 1)
		w.engineAt("e:1", func(c net.Conn, r *http.Request, _ string) bool {
			began := time.Now()
			writeString(c, chunkHead)
			for chunk(c, event2) {
				time.Sleep(100 * time.Millisecond)
			}
			left <- time.Since(began)
			return false
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		w.do(ctx, "POST", "/v1/chat/completions", streamRequest)
		if d := <-left; d > 11*time.Second {
			t.Fatal("the engine learned it after", d)
		}
		if len(w.engineRequests()) != 0 {
			t.Fatal("the replica is not to blame:", w.engineRequests())
		}
		time.Sleep(time.Second)
		if m := metric(t, w, "thaw_requests_total"); !strings.Contains(m, `code="499"`) {
			t.Error(m)
		}
	})
}

// Everyone who waits hears the first root cause at once.
func TestFailureReachesAllWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		f := testFunction("tiny")
		w.act.Publish(f)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				body := plainRequest
				if i%2 == 0 {
					body = streamRequest
				}
				r := w.post("/v1/chat/completions", body)
				if r.took != 20*time.Second || r.code() != "model_load_failed" || !strings.Contains(r.body, "CUDA out of memory") {
					t.Errorf("%+v", r)
				}
				if i%2 == 1 && (r.status != 503 || r.head.Get("x-should-retry") != "false" || r.head.Get("Retry-After") != "") {
					t.Errorf("%d %v", r.status, r.head)
				}
			})
		}
		time.Sleep(20 * time.Second)
		f.State = functions.Failed
		f.Failure = &snapshot.Failure{Reason: "CUDA out of memory", At: time.Now(), Until: time.Now().Add(30 * time.Second)}
		w.act.Publish(f)
		wg.Wait()
		if w.count(&w.wakes) != 1 {
			t.Fatal(w.count(&w.wakes), "wakes")
		}
		// The breaker is open: at once, without a wake.
		r := w.post("/v1/chat/completions", streamRequest)
		if r.status != 503 || r.code() != "model_load_failed" || r.took != 0 || w.count(&w.wakes) != 1 {
			t.Fatalf("%+v", r)
		}
		// And closes by itself.
		time.Sleep(31 * time.Second)
		w.engineAt("e:1", goodAnswer)
		w.onWake = func() { w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1")) }
		if r := w.post("/v1/chat/completions", streamRequest); r.status != 200 || w.count(&w.wakes) != 2 {
			t.Fatalf("%+v", r)
		}
	})
}

func TestWaitersShareOneWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		e := w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			time.Sleep(50 * time.Millisecond)
			return goodAnswer(c, r, body)
		})
		w.act.Publish(testFunction("tiny"))
		w.onWake = func() { time.Sleep(time.Minute); w.act.Publish(readyAt(testFunction("tiny"), 100, "e:1")) }
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if r := w.post("/v1/chat/completions", streamRequest); r.status != 200 || r.err != nil || !strings.HasSuffix(r.body, eventDone) {
					t.Errorf("%+v", r)
				}
			})
		}
		wg.Wait()
		if w.count(&w.wakes) != 1 || len(e.requests()) != 1000 {
			t.Fatalf("%d wakes, %d requests", w.count(&w.wakes), len(e.requests()))
		}
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			time.Sleep(10 * time.Second)
			return goodAnswer(c, r, body)
		})
		w.act.Publish(readyAt(testFunction("warm"), 4, "e:1"), testFunction("tiny"))
		var wg sync.WaitGroup
		for _, body := range []string{plainRequest, streamRequest} {
			wg.Go(func() {
				r := w.post("/v1/chat/completions", body)
				if r.code() != "shutting_down" || r.took != 5*time.Second {
					t.Errorf("%+v", r)
				}
			})
		}
		wg.Go(func() {
			if r := w.post("/v1/chat/completions", strings.Replace(streamRequest, "tiny", "warm", 1)); r.err != nil ||
				plainEvents(r.body) != streamed {
				t.Errorf("a stream in flight is left alone: %+v", r)
			}
		})
		time.Sleep(5 * time.Second)
		w.act.Drain(t.Context())
		select {
		case <-w.act.waiting.Drained():
		default:
			t.Error("requests wait still")
		}
		if r := w.post("/v1/chat/completions", plainRequest); r.status != 503 || r.code() != "shutting_down" || r.head.Get("Retry-After") != "1" {
			t.Errorf("%+v", r)
		}
		wg.Wait()
	})
}

func TestRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.act.Publish(testFunction("tiny"))
		go func() { time.Sleep(time.Second); w.act.Remove(testFunction("tiny").Name) }()
		if r := w.post("/v1/chat/completions", streamRequest); r.status != 404 || r.code() != "model_not_found" || r.took != time.Second {
			t.Fatalf("%+v", r)
		}
	})
}

// A request that ends after its function was removed makes no series of it again.
func TestNoSeriesOfRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		remove := func() { w.act.Remove(testFunction("tiny").Name) }
		check := func(what string, r result, status int) {
			t.Helper()
			synctest.Wait()
			text, _, err := w.reg.Text("")
			if r.status != status || r.err != nil || err != nil || strings.Contains(string(text), `model="`) {
				t.Errorf("%s: %+v, %v\n%s", what, r, err, text)
			}
		}
		w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool { remove(); return goodAnswer(c, r, body) })
		for what, body := range map[string]string{"a stream before its first byte": streamRequest, "a plain answer": plainRequest} {
			w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
			check(what, w.post("/v1/chat/completions", body), 200)
		}
		w.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool {
			writeString(c, chunkHead)
			chunk(c, event1)
			synctest.Wait()
			remove()
			return chunk(c, event2+event3+eventDone) && writeString(c, "0\r\n\r\n")
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		check("a stream in its middle", w.post("/v1/chat/completions", streamRequest), 200)
		w.act.Publish(testFunction("tiny"))
		go func() { time.Sleep(time.Second); remove() }()
		check("a request that waits", w.post("/v1/chat/completions", plainRequest), 404)

		w.newMembers(map[string]string{"a": "one", "b": "two", "judge": "both"})
		w.engineAt("judge:1", func(c net.Conn, r *http.Request, body string) bool {
			w.act.SetCompositions(nil)
			return goodAnswer(c, r, body)
		})
		w.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b")})
		if r := w.post("/v1/chat/completions", askPanel); r.status != 200 {
			t.Errorf("%+v", r)
		}
		synctest.Wait()
		if text, _, err := w.reg.Text(""); err != nil || strings.Contains(string(text), `model="panel"`) {
			t.Errorf("a Composition: %v\n%s", err, text)
		}
	})
}

// Whatever pieces the engine's bytes come in, they go on as they came.
func TestChunksAreForwardedUnchanged(t *testing.T) {
	long := `data: {"id":"c","choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 600<<10) + `"},"finish_reason":null}]}` + "\n\n"
	crlf := strings.ReplaceAll(streamed, "\n", "\r\n")
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		var body string
		size := 0
		w.engineAt("e:1", func(c net.Conn, r *http.Request, _ string) bool {
			writeString(c, chunkHead)
			for b := body; b != ""; {
				n := min(size, len(b))
				if !chunk(c, b[:n]) {
					return false
				}
				b = b[n:]
			}
			return writeString(c, "0\r\n\r\n")
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		for _, body = range []string{streamed, crlf, event1 + long + event3 + eventDone} {
			for _, size = range []int{1, 7, 100, 1000, 65536, 1 << 20} {
				if len(body) > 100000 && size < 1000 {
					continue
				}
				if r := w.post("/v1/chat/completions", streamRequest); r.body != body || r.err != nil {
					t.Errorf("%d bytes in pieces of %d: %d came out, %v", len(body), size, len(r.body), r.err)
				}
			}
		}
	})
}

func TestEngineRefusals(t *testing.T) {
	for _, c := range []struct {
		status     int
		kind, body string
		want       int
		code       string // "" for the engine's own words
	}{
		{400, "application/json", `{"error":{"message":"too long","code":400}}`, 400, ""},
		{400, "application/json", `{"object":"error","message":"old vLLM says \"error\" so"}`, 400, ""},
		{404, "application/json", `{"detail":"Not Found"}`, 404, "unknown_endpoint"},
		{422, "application/json", `{"detail":[]}`, 422, "invalid_request"},
		{500, "text/plain", "Internal Server Error", 500, "internal_error"},
		{503, "text/plain", "busy", 503, "queue_full"},
		{503, "application/json", `{"error":{"message":"queue is full"}}`, 503, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			w.engineAt("e:1", func(conn net.Conn, r *http.Request, _ string) bool {
				return writeString(conn,
					fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", c.status, c.kind, len(c.body), c.body))
			})
			w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
			for _, body := range []string{plainRequest, streamRequest} {
				r := w.post("/v1/chat/completions", body)
				if r.status != c.want || c.code != "" && r.code() != c.code || c.code == "" && r.body != c.body {
					t.Errorf("%d %s: %+v", c.status, c.body, r)
				}
				if c.status == 503 && r.head.Get("Retry-After") != "1" {
					t.Error(r.head)
				}
			}
			if w.act.InFlightOf(testFunction("tiny").Name, "e:1") != 0 {
				t.Error("in flight")
			}
		})
	}
}

func TestInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			time.Sleep(10 * time.Second)
			return goodAnswer(c, r, body)
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { w.post("/v1/chat/completions", plainRequest) })
		}
		time.Sleep(time.Second)
		w.act.Publish(testFunction("tiny")) // it drains
		if n := w.act.InFlightOf(testFunction("tiny").Name, "e:1"); n != 3 {
			t.Error(n)
		}
		wg.Wait()
		if n := w.act.InFlightOf(testFunction("tiny").Name, "e:1"); n != 0 {
			t.Error(n)
		}
		if d := w.takeDemand()["tiny"]; len(d.InFlight) > 0 {
			t.Error("a replica that left is forgotten")
		}
	})
}

// An agent that has lost its replica is no engine that refuses: the request goes
// elsewhere.
func TestAgentHasNoSuchReplica(t *testing.T) {
	for _, body := range []string{
		`{"error":{"message":"no replica m-1 here","type":"invalid_request_error","code":"replica_not_found"}}`,
		`{"error":{"message":"replica m-1 is UNLOADED","type":"server_error","code":"replica_not_ready"}}`,
		`{"error":{"message":"the engine of replica m-1 did not answer","type":"server_error","code":"engine_crashed"}}`,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			agent := w.engineAt("agent:1", func(c net.Conn, r *http.Request, _ string) bool {
				return writeString(c, fmt.Sprintf("HTTP/1.1 503 X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
			})
			w.engineAt("e:2", goodAnswer)
			f := readyAt(testFunction("tiny"), 4, "e:1")
			f.Replicas[0].Endpoint, f.Replicas[0].Key = "http://agent:1/replicas/m-1", "key"
			w.act.Publish(f)
			go func() { time.Sleep(time.Second / 2); w.act.Publish(readyAt(testFunction("tiny"), 4, "e:2")) }()
			if r := w.post("/v1/chat/completions", streamRequest); r.status != 200 || r.body != streamed {
				t.Errorf("%+v", r)
			}
			s := agent.requests()
			if len(s) != 1 || s[0].path != "/replicas/m-1/v1/chat/completions" || s[0].head.Get("Authorization") != "Bearer key" {
				t.Errorf("the agent saw %+v", s)
			}
			if len(w.engineRequests()) != 1 {
				t.Error(w.engineRequests())
			}
		})
	}
}
