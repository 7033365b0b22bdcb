package activator

import (
	"fmt"
	"net"
	"net/http"
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

// closesAfter is a request of this program that is closed once n pieces of its stream were read;
// where that has fewer, at its end.
func (s *stage) closesAfter(path, body string, n int) {
	c := call.Open(s.t.Context(), s.act.Serve, &call.Caller{Identity: auth.Identity{Team: functions.DefaultTeam}}, path, nil, []byte(body))
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
