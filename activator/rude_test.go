package activator

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/testkit/rude"
)

// TestRudeEngines runs the rows of rude engines through the data path, on a READY replica
// and for a request that was held until one was READY.
func TestRudeEngines(t *testing.T) {
	for _, row := range rude.Rows() {
		for _, held := range []bool{false, true} {
			if held && !row.Stream {
				continue // a plain request that waited gets the same answer as one that did not
			}
			t.Run(fmt.Sprintf("%s %s, held %v", row.ID, row.Name, held), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { runRudeRow(t, row, held) })
			})
		}
	}
}

func runRudeRow(t *testing.T, row rude.Row, held bool) {
	w := newTestEnv(t, nil)
	e := w.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool { return row.Answer.Play(c) })
	ready := readyAt(testFunction("tiny"), 4, "e:1")
	if held {
		w.act.Publish(testFunction("tiny"))
		w.onWake = func() { time.Sleep(5 * time.Second); w.act.Publish(ready) }
	} else {
		w.act.Publish(ready)
	}
	path, body, status := row.Path, plainRequest, row.Status
	if path == "" {
		path = "/v1/chat/completions"
	}
	if row.Stream {
		body = streamRequest
	}
	if held {
		status = 200
	}
	r := w.post(path, body)
	if r.status != status {
		t.Errorf("status %d, want %d: %s", r.status, status, r.body)
	}
	rest := plainEvents(r.body)
	for _, words := range row.Words {
		_, after, ok := strings.Cut(strings.ReplaceAll(rest, `\u003c`, "<"), words)
		if !ok {
			t.Errorf("%q is not in %q, or not in this order", words, r.body)
		}
		rest = after
	}
	for _, words := range row.Absent {
		if strings.Contains(plainEvents(r.body), words) {
			t.Errorf("%q is in %q", words, r.body)
		}
	}
	if held && !strings.Contains(r.body, "event:") && !row.Odd {
		wireRules(t, r.body)
	}
	if row.Code != "" && r.code() != row.Code || row.Type != "" && !strings.Contains(strings.ReplaceAll(r.body, " ", ""), `"type":"`+row.Type+`"`) {
		t.Errorf("want code %q and type %q: %s", row.Code, row.Type, r.body)
	}
	if frames := strings.Count(r.body, `"error"`); row.Stream && !row.Success && frames > 2 || row.Success && (frames > 0 || r.err != nil) {
		t.Errorf("%d errors in %q, %v", frames, r.body, r.err)
	}
	if kinds := r.head.Values("Content-Type"); len(kinds) > 1 ||
		row.Stream && row.Success && !strings.HasPrefix(kinds[0], "text/event-stream") {
		t.Errorf("content types %q", kinds)
	}
	if row.RetryAfter != "" && !held && r.head.Get("Retry-After") != row.RetryAfter {
		t.Errorf("Retry-After is %q, want %q", r.head.Get("Retry-After"), row.RetryAfter)
	}
	if got := e.requests(); len(got) != row.Requests || len(got) > 0 && !slices.Equal(got[0].head["Accept-Encoding"], []string{"identity"}) {
		t.Errorf("the engine was asked %d times, want %d: %+v", len(got), row.Requests, got)
	}
	if got := w.engineRequests(); (len(got) > 0) != row.Blamed || len(got) > 1 {
		t.Errorf("the platform was asked to look: %v", got)
	}
	if m := metric(t, w, "thaw_engine_errors_total"); strings.Contains(m, `kind="died"`) != row.Died {
		t.Errorf("a crash is counted: %v; %s", !row.Died, m)
	}
	if row.Within > 0 && r.took > row.Within {
		t.Errorf("answered after %v, want %v", r.took, row.Within)
	}
	if w.act.InFlightOf(testFunction("tiny").Name, "e:1") != 0 {
		t.Error("the request is still counted")
	}
	time.Sleep(2 * time.Minute) // until an engine that pauses finds its connection closed
}

// TestRudeEngineOverTCP: over a true connection a decoded answer leaves it for the next
// request, and a reset behind an error frame is no second error.
func TestRudeEngineOverTCP(t *testing.T) {
	w := newTestEnv(t, func(o *Options) { o.Engines = upstream.New(upstream.Options{}) })
	t.Cleanup(w.act.o.Engines.Close)
	rows := map[string]rude.Row{}
	for _, row := range rude.Rows() {
		rows[row.Name] = row
	}
	order := []string{"gzip, plain", "deflate, plain", "gzip, stream", "plain, then a text of 500", "tokens, a frame, a reset"}
	var answers []rude.Answer
	for _, name := range order {
		answers = append(answers, rows[name].Answer)
	}
	e := rude.Start(t, answers...)
	w.act.Publish(readyAt(testFunction("tiny"), 4, e.Addr))
	for i, name := range order {
		row, body := rows[name], plainRequest
		if row.Stream {
			body = streamRequest
		}
		r := w.post("/v1/chat/completions", body)
		if r.status != row.Status || !strings.Contains(r.body, row.Words[0]) || strings.Contains(r.body, "engine_crashed") {
			t.Errorf("%s: %+v", name, r)
		}
		if got := e.Requests(); len(got) != i+1 || got[i].Conn != 1 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestSilenceOfFinished: a stream that has finished may be silent for FinishedIdle, or UsageIdle
// where usage is still to come, and then gets its end mark; where several choices are asked for,
// one that has finished says nothing about the others.
func TestSilenceOfFinished(t *testing.T) {
	head := rude.Head(200, "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
	one := `data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}` + "\n\n"
	other := strings.NewReplacer(`"index":0`, `"index":1`, `"a"`, `"b"`).Replace(one)
	usage, hang := `data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}`+"\n\n", rude.Step{Then: rude.Hang}
	const stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	stopped := "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n"
	wantsUsage := strings.Replace(streamRequest, `"stream"`, `"stream_options":{"include_usage":true},"stream"`, 1)
	pings := rude.Answer{head, {Chunk: one}}
	for range 20 {
		pings = append(pings, rude.Step{Pause: time.Second, Chunk: ": ping\n\n"})
	}
	const chat, end = "/v1/chat/completions", "data: [DONE]\n\n"
	for name, x := range map[string]struct {
		path, body string
		plays      rude.Answer
		ends       string
		took       time.Duration
	}{
		"in the first read":    {chat, streamRequest, rude.Answer{head, {Chunk: one}, hang}, one + end, answer.FinishedIdle},
		"in a later read":      {chat, streamRequest, rude.Answer{head, {Chunk: other[:40]}, {Pause: time.Second, Chunk: other[40:]}, hang}, other + end, answer.FinishedIdle + time.Second},
		"with comments":        {chat, streamRequest, append(pings, hang), end, answer.FinishedIdle},
		"usage is missing":     {chat, wantsUsage, rude.Answer{head, {Chunk: one}, hang}, one + end, answer.UsageIdle},
		"usage is late":        {chat, wantsUsage, rude.Answer{head, {Chunk: one}, {Pause: 8 * time.Second, Chunk: usage}, hang}, usage + end, 8*time.Second + answer.FinishedIdle},
		"a message":            {"/v1/messages", streamRequest, rude.Answer{head, {Chunk: stopped}, hang}, stopped + stop, answer.FinishedIdle},
		"a message that stops": {"/v1/messages", streamRequest, rude.Answer{head, {Chunk: stopped + stop}, hang}, stopped + stop, answer.FinishedIdle},
		"of several":           {chat, strings.Replace(streamRequest, `"stream"`, `"n":2,"stream"`, 1), rude.Answer{head, {Chunk: one}, {Pause: 30 * time.Second, Chunk: other + end}, {Write: "0\r\n\r\n"}}, other + end, 30 * time.Second},
		"of several prompts":   {"/v1/completions", `{"model":"tiny","prompt":["x","y"],"stream":true}`, rude.Answer{head, {Chunk: one}, {Pause: 30 * time.Second, Chunk: other + end}, {Write: "0\r\n\r\n"}}, other + end, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				w.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool { return x.plays.Play(c) })
				w.act.Publish(readyAt(testFunction("tiny"), 1, "e:1"))
				r := w.post(x.path, x.body)
				if r.status != 200 || !strings.HasSuffix(r.body, x.ends) || r.err != nil ||
					r.took < x.took || r.took > x.took+x.took/4 { // the deadline is set rarely
					t.Errorf("%+v", r)
				}
				began := time.Now()
				if w.post(x.path, x.body); time.Since(began) > 2*x.took { // the slot is free, the connection a new one
					t.Errorf("the next request took %v", time.Since(began))
				}
				time.Sleep(time.Minute) // until an engine that pauses finds its connection closed
			})
		})
	}
}
