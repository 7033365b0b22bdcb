package activator

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// open is an engine that writes pieces, a second apart, and then neither more nor the end.
func open(pieces ...string) answering {
	return func(c net.Conn, r *http.Request, body string) bool {
		writes("", pieces...)(c, r, body)
		c.Read(make([]byte, 1))
		return false
	}
}

const deadFrame = `data: {"error":{"message":"EngineCore encountered an issue.","type":"server_error","code":500}}` + "\n\n"

// saying is the plain request with another text.
func saying(body, text string) string { return strings.Replace(body, "hello", text, 1) }

// rareScenes are ends that several things must come together for.
var rareScenes = []scene{
	{name: "retries of clients with a timeout", play: func(s *stage) {
		s.engineAt("e:1", after(30*time.Second, goodAnswer))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		try := func(text, count string) []string {
			return []string{"X-Stainless-Retry-Count", count, "X-Stainless-Timeout", "10", "X-Client-Request-Id", text + "-" + count}
		}
		s.leaves(9500*time.Millisecond, saying(plainRequest, "late"), try("late", "0")...) // as its timeout has come
		s.leaves(5*time.Second, saying(plainRequest, "early"), try("early", "0")...)
		late := s.beside(func() { s.chat(saying(plainRequest, "late"), try("late", "1")...) })
		early := s.beside(func() { s.chat(saying(plainRequest, "early"), try("early", "1")...) })
		late()
		early()
		first := s.beside(func() { s.chat(saying(plainRequest, "first"), try("first", "0")...) })
		s.chat(saying(plainRequest, "first"), "X-Stainless-Retry-Count", "0")
		first()
	}},
	{name: "keys of retries", play: func(s *stage) {
		s.ready(4, "e:1")
		for _, key := range []string{strings.Repeat("k", 255), strings.Repeat("k", 256)} {
			first := s.beside(func() { s.chat(plainRequest, "Idempotency-Key", key) })
			s.chat(plainRequest, "Idempotency-Key", key)
			first()
		}
		first := s.beside(func() { s.chat(plainRequest, "Idempotency-Key", "k") })
		time.Sleep(3 * time.Millisecond) // reports of the demand come beside the ends
		streams := s.beside(func() { s.chat(streamRequest, "Idempotency-Key", "k") })
		s.chat(saying(plainRequest, "other"), "Idempotency-Key", "k")
		first()
		streams()
	}},
	{name: "a second wait that is too long", play: func(s *stage) {
		s.engineAt("e:1", after(3*time.Second, dies))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.chat(plainRequest, "thaw-max-wait", "8")
		time.Sleep(time.Minute)
		s.chat(streamRequest, "thaw-max-wait", "8")
		time.Sleep(time.Minute)
		s.leaves(5*time.Second, plainRequest)
	}},
	{name: "a Router whose targets fail one after the other", play: func(s *stage) {
		s.engineAt("f:1", after(2*time.Second, says(500, `{"error":"no"}`)))
		s.engineAt("s:1", after(time.Second, dies))
		s.act.Publish(readyAt(testFunction("first"), 4, "f:1"), readyAt(testFunction("second"), 4, "s:1"), testFunction("third"))
		r := testRouter("first", "second", "third")
		r.Spec.Retry.Escalate = true
		s.act.SetRouters([]*functions.Router{r}, nil)
		s.chat(autoRequest, "thaw-priority", "low", "thaw-max-wait", "9")
		s.chat(strings.Replace(autoRequest, `{"model"`, `{"stream":true,"model"`, 1), "thaw-max-wait", "9")
	}},
	{name: "an engine that writes that it dies", play: func(s *stage) {
		s.engineAt("e:1", writes("0\r\n\r\n", event1, deadFrame))
		s.engineAt("e:2", writes("", event1, badFrame, deadFrame))
		s.engineAt("e:3", writes("0\r\n\r\n", deadFrame, eventDone))
		s.engineAt("e:4", writes("", event1, deadFrame, badFrame))
		for _, addr := range []string{"e:1", "e:2", "e:3", "e:4"} {
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			s.chat(saying(streamRequest, addr))
		}
	}},
	{name: "streams that stay open", change: func(o *Options) { o.Timing.StreamIdle = 40 * time.Second }, play: func(s *stage) {
		s.engineAt("e:1", open(event1, event3))
		s.engineAt("e:2", open(event1, event3, eventDone))
		s.engineAt("e:3", open(event1, eventDone+event1))
		for _, addr := range []string{"e:1", "e:2", "e:3"} {
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			s.chat(saying(streamRequest, addr))
			s.chat(strings.Replace(saying(streamRequest, addr), `"stream":true`, `"stream":true,"n":2`, 1))
		}
	}},
	{name: "streams that end within an event", play: func(s *stage) {
		half := event2[:len(event2)/2]
		s.engineAt("e:1", writes("0\r\n\r\n", event1, half))
		s.engineAt("e:2", writes("", event1, half))
		s.engineAt("e:3", writes("0\r\n\r\n", event1, strings.TrimRight(event2, "\n")))
		s.engineAt("e:4", writes("0\r\n\r\n", event1+half, event2[len(half):]+event3+eventDone))
		for _, addr := range []string{"e:1", "e:2", "e:3", "e:4"} {
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			s.chat(saying(streamRequest, addr))
		}
	}},
	{name: "early copies that are refused, and that die", play: func(s *stage) {
		shim := s.shimAt("e:1")
		shim.refuses.Store(true)
		s.engineAt("e:2", after(time.Second, dies))
		s.engineAt("e:3", after(time.Second, goodAnswer))
		for _, addr := range []string{"e:1", "e:2"} {
			s.act.Publish(startingAt(testFunction("tiny"), 4, addr))
			waits := s.beside(func() { s.chat(saying(plainRequest, addr)) })
			time.Sleep(3 * time.Second)
			s.act.Publish(startingAt(testFunction("tiny"), 4, addr, "e:3")) // a request that an engine has seen is not copied again
			time.Sleep(3 * time.Second)
			s.act.Publish(readyAt(testFunction("tiny"), 4, "e:3"))
			waits()
		}
	}},
	{name: "what is known of those that wait", play: func(s *stage) {
		coldStart(s, 1)
		tell := func() {
			for _, id := range []string{"one", "two", "none"} {
				position, name, ok := s.act.Position(id)
				cold, is := s.act.ColdStartOf(id)
				s.note("%s: position %d of %s %v, cold start %q %v", id, position, name, ok, cold, is)
			}
			d, ok := s.act.DemandOf(testFunction("tiny").Name)
			s.note("demand: %d active, %d queued, oldest %v ago, last end %v ago, %v, at e:1 %d", d.Active, d.Queued, since(d.Oldest),
				since(d.LastEnd), ok, s.act.InFlightOf(testFunction("tiny").Name, "e:1"))
		}
		one := s.beside(func() { s.chat(saying(plainRequest, "one"), "X-Client-Request-Id", "one") })
		two := s.beside(func() { s.chat(saying(plainRequest, "two"), "X-Client-Request-Id", "two") })
		tell()
		time.Sleep(5500 * time.Millisecond)
		tell()
		one()
		two()
		time.Sleep(time.Second)
		tell()
		_, ok := s.act.DemandOf(testFunction("none").Name)
		s.note("another: %v", ok)
	}},
	{name: "two waits of one request", play: func(s *stage) {
		s.engineAt("e:1", after(2*time.Second, dies))
		s.act.Publish(readyAt(testFunction("tiny"), 1, "e:1"))
		other := s.beside(func() { s.chat(saying(plainRequest, "other")) })
		s.chat(plainRequest)
		other()
	}},
	{name: "streams that come at once", play: func(s *stage) {
		for i, events := range []string{event1 + event3, event1 + event3 + eventDone, event1, event1 + badFrame, eventDone,
			event1 + strings.TrimRight(event3, "\n"), event1 + event3[:40], event1 + event3 + "data: [DONE]"} {
			addr := fmt.Sprint("e:", i)
			s.engineAt(addr, func(c net.Conn, _ *http.Request, _ string) bool {
				return writeString(c, fmt.Sprintf("%s%x\r\n%s\r\n0\r\n\r\n", chunkHead, len(events), events))
			})
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			s.chat(saying(streamRequest, addr))
		}
	}},
	{name: "a client that leaves its early copy", play: func(s *stage) {
		shim := s.shimAt("e:1")
		for _, ready := range []bool{true, false} {
			s.act.Publish(startingAt(testFunction("tiny"), 4, "e:1"))
			leaves := s.beside(func() { s.leaves(3*time.Second, plainRequest) })
			if ready {
				s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
			}
			leaves()
			synctest.Wait()
			s.note("%d copies wait, %d were cancelled", shim.waiting.Load(), shim.disconnects.Load())
		}
	}},
	{name: "names that are nearly right", play: func(s *stage) {
		s.ready(1, "e:1")
		for _, name := range []string{"TINY", "org/ Tiny :latest", "tiny:latest", "tin", "other/tiny", "x"} {
			s.chat(strings.Replace(plainRequest, "tiny", name, 1))
		}
	}},
}

func since(at time.Time) time.Duration {
	if at.IsZero() {
		return -1
	}
	return time.Since(at)
}
