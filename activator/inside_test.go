package activator

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/call"
	"github.com/thaw-dev/thaw/functions"
)

// TestCallInside: a request of this program has the identity of its caller without a key,
// no place of its own where a parent's covers it, and its tokens are charged.
func TestCallInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, func(o *Options) { o.Open, o.Hold = false, Hold503 })
		w.engineAt("e:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("red/tiny"), 4, "e:1"))
		team := functions.Team{Metadata: functions.Metadata{Name: "red"}}
		team.Spec.Limits = functions.Limits{Concurrent: 1, HeldRequests: 1, TokensPerMinute: 1000}
		w.limits.SetTeams([]functions.Team{team})
		parent, refusal := w.limits.Admit("red", time.Now())
		if refusal != nil {
			t.Fatal(refusal)
		}
		c := &call.Caller{Identity: auth.Identity{Team: "red", KeyID: "k"}, Parent: "req_parent"}
		a, err := call.Do(t.Context(), w.act.Serve, c, "/v1/chat/completions", nil, []byte(plainRequest))
		if err != nil || a.Status != 200 || string(a.Body) != jsonAnswer {
			t.Fatalf("%d %s %v", a.Status, a.Body, err)
		}
		if u := w.limits.Usage("red", time.Now()); u.Active != 1 || u.Spent != 5 {
			t.Errorf("usage %+v", u)
		}
		synctest.Wait()
		if !strings.Contains(w.logs.String(), "parent=req_parent") {
			t.Errorf("log %s", w.logs)
		}
		alone := *c
		alone.Parent = ""
		if a, err = call.Do(t.Context(), w.act.Serve, &alone, "/v1/chat/completions", nil, []byte(plainRequest)); err != nil || a.Status != 429 {
			t.Errorf("without a parent: %d %v", a.Status, err)
		}
		parent.End(0, time.Now())
		if u := w.limits.Usage("red", time.Now()); u.Active != 0 {
			t.Errorf("usage %+v", u)
		}
		if r := w.post("/v1/chat/completions", plainRequest); r.status != 401 {
			t.Errorf("a client without a key: %d", r.status)
		}

		// A cold function: the calls wait, whatever clients get, and are held by the parent.
		w.onWake = func() {
			time.Sleep(10 * time.Second)
			w.act.Publish(readyAt(testFunction("red/cold"), 4, "e:1"))
		}
		w.act.Publish(testFunction("red/cold"))
		answers := make(chan error, 2)
		for range 2 {
			go func() {
				a, err := call.Do(t.Context(), w.act.Serve, c, "/v1/chat/completions", nil, []byte(strings.Replace(plainRequest, "tiny", "cold", 1)))
				if err == nil && a.Status != 200 {
					err = errors.New(string(a.Body))
				}
				answers <- err
			}()
		}
		for range 2 {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestCallInsideEnds: the end of the caller's context ends the request at the engine.
func TestCallInsideEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			if strings.Contains(body, `"stream":true`) {
				writeString(c, chunkHead)
				chunk(c, event1)
			}
			c.Read(make([]byte, 1)) // until the connection is closed
			return false
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		for _, body := range []string{plainRequest, streamRequest} {
			gone := errors.New("gone")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Minute, func() { cancel(gone) })
			s := call.Open(ctx, w.act.Serve, &call.Caller{Identity: auth.Identity{Team: functions.DefaultTeam}}, "/v1/chat/completions", nil,
				[]byte(body))
			var err error
			if s.IsEvents {
				for err == nil {
					_, err = s.Next()
				}
			} else {
				_, err = s.Whole()
			}
			s.Close()
			if err != gone {
				t.Errorf("%s: %v", body, err)
			}
		}
		synctest.Wait()
		if d, _ := w.act.DemandOf(functions.Name{Team: functions.DefaultTeam, Name: "tiny"}); d.Active != 0 {
			t.Errorf("%+v", d)
		}
	})
}
