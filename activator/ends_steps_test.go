package activator

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/call"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// eventNamed is an event of the endpoints whose events have names.
func eventNamed(name, rest string) string {
	return fmt.Sprintf("event: %s\ndata: {\"type\":%q%s}\n\n", name, name, rest)
}

// The events of messages and responses.
var (
	messageStart = eventNamed("message_start",
		`,"message":{"id":"m","role":"assistant","content":[],"usage":{"input_tokens":3,"output_tokens":1}}`)
	messageText  = eventNamed("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":"h"}`)
	messageEnd   = eventNamed("message_delta", `,"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}`)
	messageStop  = eventNamed("message_stop", "")
	messageError = eventNamed("error", `,"error":{"type":"api_error","message":"CUDA out of memory"}`)

	responseBegin = eventNamed("response.created", `,"sequence_number":0,"response":{"id":"r","model":"tiny"}`)
	responseText  = eventNamed("response.output_text.delta", `,"sequence_number":1,"delta":"h"`)
	responseEnd   = eventNamed("response.completed",
		`,"sequence_number":2,"response":{"id":"r","status":"completed","usage":{"input_tokens":3,"output_tokens":2}}`)
	responseError = eventNamed("error", `,"sequence_number":2,"code":"server_error","message":"CUDA out of memory"`)
)

const messagesRequest = `{"model":"tiny","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"hello"}]}`
const responsesRequest = `{"model":"tiny","stream":true,"input":"hello"}`

// steps are streams of an engine, by pieces that come a second apart.
var steps = []struct {
	path, body string
	pieces     []string
}{
	{"/v1/chat/completions", streamRequest, []string{event1, event3, eventDone}},
	{"/v1/chat/completions", streamRequest, []string{event1, event3 + eventDone}},
	{"/v1/chat/completions", streamRequest, []string{event1, badFrame, eventDone}},
	{"/v1/chat/completions", streamRequest, []string{event1, badFrame + eventDone}},
	{"/v1/chat/completions", streamRequest, []string{event1, deadFrame + eventDone}},
	{"/v1/messages", messagesRequest, []string{messageStart, messageText, messageEnd, messageStop}},
	{"/v1/messages", messagesRequest, []string{messageStart + messageText, messageError, messageStop}},
	{"/v1/responses", responsesRequest, []string{responseBegin, responseText, responseEnd}},
	{"/v1/responses", responsesRequest, []string{responseBegin, responseText, responseError + eventDone}},
}

// open opens a request of this program.
func (s *stage) open(path, body string) *call.Stream {
	c := &call.Caller{Identity: auth.Identity{Team: functions.DefaultTeam}}
	return call.Open(s.t.Context(), s.act.Serve, c, path, nil, []byte(body))
}

// closesAfter is a request of this program that is closed once n pieces of its stream were read;
// where that has fewer, at its end.
func (s *stage) closesAfter(path, body string, n int) {
	c := s.open(path, body)
	reads, lines := 0, 0
	c.OnRead = func() { reads++ }
	var err error
	for reads < n && err == nil {
		if _, err = c.Next(); err == nil {
			lines++
		}
	}
	c.Close()
	s.note("%d lines of %d reads: %v", lines, reads, err)
	time.Sleep(2 * time.Second)
}

// adaptersAt loads adapters for a second each, at replicas by what it returns.
type adaptersAt func(ctx context.Context, replica string) error

func (a adaptersAt) LoadAdapter(ctx context.Context, _ functions.Name, replica string) error {
	time.Sleep(time.Second)
	return a(ctx, replica)
}

func (a adaptersAt) UseAdapter(functions.Name, string) {}

// gauges notes the gauges of functions.
func (s *stage) gauges() {
	for _, name := range []string{"thaw_buffered_requests", "thaw_buffer_bytes", "thaw_active_requests"} {
		s.note("%s %q", name, metric(s.t, s.testEnv, name))
	}
}

const tinyForm = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n" +
	"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--b--\r\n"

// stepScenes are ends after each step of a stream, and of early copies.
var stepScenes = []scene{
	{name: "clients that close a stream after each step", play: func(s *stage) {
		for i, step := range steps {
			addr := fmt.Sprint("e:", i)
			s.engineAt(addr, writes("0\r\n\r\n", step.pieces...))
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			for n := range len(step.pieces) + 2 {
				s.closesAfter(step.path, step.body, n)
			}
		}
	}},
	{name: "clients that leave a stream after each step", play: func(s *stage) {
		for i, step := range steps {
			addr := fmt.Sprint("e:", i)
			s.engineAt(addr, open(step.pieces...))
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			for n := range len(step.pieces) + 1 {
				s.leavesAt(step.path, time.Duration(n)*time.Second+500*time.Millisecond, step.body)
				time.Sleep(2 * time.Second)
			}
		}
	}},
	{name: "early copies at a replica that starts for long", change: func(o *Options) { o.Timing.Comment = time.Hour }, play: func(s *stage) {
		f := testFunction("tiny")
		f.Model.Spec.Deadlines.FirstToken = functions.Duration(10 * time.Second)
		for _, wait := range []string{"60", "8"} {
			shim := s.shimAt("e:" + wait)
			s.act.Publish(startingAt(f, 4, "e:"+wait))
			waits := s.beside(func() { s.chat(streamRequest, "thaw-max-wait", wait) })
			time.Sleep(30 * time.Second)
			close(shim.opened)
			waits()
		}
		s.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool { c.Read(make([]byte, 1)); return false })
		s.act.Publish(startingAt(f, 4, "e:1"))
		waits := s.beside(func() { s.chat(streamRequest, "thaw-max-wait", "60") })
		time.Sleep(50 * time.Second)
		s.act.Publish(readyAt(f, 4, "e:1")) // the copy is the request now, and its engine silent
		waits()
	}},
	{name: "gauges of revisions", play: func(s *stage) {
		s.ready(1, "e:1")
		for i := range 2 {
			f := readyAt(testFunction(fmt.Sprint("tiny-", i)), 1, "e:1")
			f.ServedModelName, f.Hidden = "tiny", true
			s.act.Publish(f)
			for n := range 2 + i {
				time.Sleep(3 * time.Millisecond) // reports of the demand come beside the ends
				defer s.beside(func() { s.chat(strings.Replace(saying(plainRequest, fmt.Sprint(n)), "tiny", f.Name.Name, 1)) })()
			}
		}
		s.gauges()
		time.Sleep(1200 * time.Millisecond)
		s.gauges()
	}},
	{name: "adapters that load at one replica alone", change: func(o *Options) {
		o.Adapters = adaptersAt(func(_ context.Context, replica string) error {
			if replica == "e:1" {
				return &functions.AdapterError{Code: "no_memory", Message: "it is full."}
			}
			return nil
		})
	}, play: func(s *stage) {
		s.engineAt("e:1", after(time.Second, goodAnswer))
		s.engineAt("e:2", after(time.Second, goodAnswer))
		s.act.Publish(withAdapters(readyAt(testFunction("tiny"), 4, "e:1", "e:2")))
		for i := range 4 {
			s.chat(saying(adapterRequest, fmt.Sprint(i)), "thaw-session", fmt.Sprint(i))
		}
		s.act.Publish(withAdapters(readyAt(testFunction("tiny"), 4, "e:1")))
		s.chat(adapterRequest, "thaw-max-wait", "5")
		time.Sleep(time.Minute)
		s.act.Publish(withAdapters(readyAt(testFunction("tiny"), 4, "e:1", "e:2"), []string{"pirate"}, nil))
		for i := range 4 {
			s.chat(saying(adapterRequest, fmt.Sprint("loaded ", i)), "thaw-session", fmt.Sprint(i))
		}
	}},
	{name: "a reservation whose model becomes a Remote", beside: true, play: func(s *stage) {
		s.engineAt("cloud:1", goodAnswer)
		s.act.Publish(testFunction("tiny"))
		s.onWake = func() { time.Sleep(time.Second); s.publish(testRemote("tiny", "cloud:1", functions.DataSecret)) }
		r, e := s.act.Reserve(s.t.Context(), ReservationRequest{Name: testFunction("tiny").Name, Team: "default"})
		s.note("%v, %v", r != nil, e)
		if r != nil {
			r.Finish(200)
		}
	}},
	{name: "an event that is too long to keep", play: func(s *stage) {
		long := `data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", maxEvent-49) // of the most bytes that are kept
		s.engineAt("e:1", writes("0\r\n\r\n", event1, long, "y", "z", `"},"finish_reason":"stop"}]}`+"\n\n"+event2[:20], event2[20:]+eventDone))
		s.engineAt("e:2", writes("", event1, long, "y"))
		for _, addr := range []string{"e:1", "e:2"} {
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			c := s.open("/v1/chat/completions", saying(streamRequest, addr))
			var last time.Time
			c.OnRead = func() {
				if now := time.Now(); !now.Equal(last) {
					last = now
					s.note("read")
				}
			}
			for {
				line, err := c.Next()
				if s.note("%d bytes %.60q %v", len(line), line, err); err != nil {
					break
				}
			}
			c.Close()
		}
	}},
	{name: "a drain with a client that does not read", play: func(s *stage) {
		s.act.Publish(testFunction("tiny"))
		c := s.open("/v1/chat/completions", streamRequest)
		ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
		defer cancel()
		s.act.Drain(ctx)
		s.note("%v", ctx.Err())
		for {
			line, err := c.Next()
			if s.note("%s %v", line, err); err != nil {
				break
			}
		}
		c.Close()
		s.act.Drain(s.t.Context())
		s.note("drained")
	}},
	{name: "a form behind padding", change: padded(time.Second, time.Second), play: func(s *stage) {
		s.engineAt("e:1", after(3*time.Second, says(200, `{"text":"hello"}`)))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.see(s.post("/v1/audio/transcriptions", tinyForm, "Content-Type", "multipart/form-data; boundary=b"))
	}},
	{name: "a node that refuses the adopted copy, and again", play: func(s *stage) {
		s.engineAt("e:9", after(time.Second, goodAnswer))
		for _, body := range []string{plainRequest, streamRequest} {
			for refusals := range 4 {
				left := refusals
				s.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
					if r.Header.Get(snapshot.EarlyHeader) != "" {
						time.Sleep(2 * time.Second)
					}
					time.Sleep(time.Second)
					if left == 0 {
						return goodAnswer(c, r, body)
					}
					left--
					return says(503, notReady)(c, r, body)
				})
				for _, addrs := range [][]string{{"e:1"}, {"e:1", "e:9"}} {
					s.act.Publish(startingAt(testFunction("tiny"), 4, "e:1"))
					asks := s.beside(func() { s.chat(saying(body, fmt.Sprint(refusals, addrs)), "thaw-max-wait", "20") })
					s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1")) // which has its copy
					time.Sleep(time.Second)
					s.act.Publish(readyAt(testFunction("tiny"), 4, addrs...))
					asks()
					time.Sleep(time.Minute)
					left = refusals
				}
			}
		}
	}},
}
