package activator

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/call"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
)

// silent is an engine that never answers.
func silent(c net.Conn, _ *http.Request, _ string) bool { c.Read(make([]byte, 1)); return false }

// oddScenes are ends that few requests have.
var oddScenes = []scene{
	{name: "endpoints behind padding", change: padded(time.Second, time.Second), play: func(s *stage) {
		s.engineAt("e:1", after(3*time.Second, says(200, "sound")))
		s.engineAt("e:2", after(3*time.Second, says(200, "")))
		for _, addr := range []string{"e:1", "e:2"} {
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			for _, path := range []string{"/v1/audio/speech", "/v1/embeddings", "/tokenize"} {
				if addr == "e:1" || path != "/v1/audio/speech" { // net/http's client may lose an answer of length 0
					s.see(s.post(path, responsesRequest))
				}
			}
		}
	}},
	{name: "a large answer in chunks that breaks", play: func(s *stage) {
		for i, end := range []string{"", "0\r\n\r\n"} {
			s.engineAt(fmt.Sprint("e:", i), func(c net.Conn, _ *http.Request, _ string) bool {
				writeString(c, strings.Replace(chunkHead, "text/event-stream; charset=utf-8", "application/json", 1))
				chunk(c, large)
				return end != "" && writeString(c, end)
			})
			s.act.Publish(readyAt(testFunction("tiny"), 4, fmt.Sprint("e:", i)))
			s.seeLarge(s.post("/v1/chat/completions", plainRequest))
		}
	}},
	{name: "one request whose engines write that they die", play: func(s *stage) {
		for i := range 4 {
			addr := fmt.Sprint("e:", i)
			s.engineAt(addr, writes("0\r\n\r\n", event1, deadFrame))
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			s.chat(streamRequest)
			time.Sleep(time.Second)
		}
	}},
	{name: "a text that looks like the end mark", play: func(s *stage) {
		text := strings.Replace(event2, `"i"`, `"[DONE]"`, 1)
		s.engineAt("e:1", chunked("0\r\n\r\n", event1, text, event3, eventDone))
		s.engineAt("e:2", writes("0\r\n\r\n", event1, text+event3+eventDone+text))
		for _, addr := range []string{"e:1", "e:2"} {
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			s.chat(saying(streamRequest, addr))
		}
	}},
	{name: "a silent engine of a model without deadlines", change: func(o *Options) { o.Timing.Comment = time.Hour }, play: func(s *stage) {
		s.engineAt("e:1", silent)
		without, none := testFunction("tiny"), testFunction("tiny")
		without.Model.Spec.Deadlines.FirstToken, none.Model = 0, nil
		s.act.Publish(readyAt(without, 4, "e:1"))
		s.chat(streamRequest)
		time.Sleep(time.Minute)
		s.act.Publish(readyAt(none, 4, "e:1"))
		s.chat(saying(streamRequest, "none"))
	}},
	{name: "a function that is removed while its engines fail", play: func(s *stage) {
		for _, engine := range []answering{dies, goodAnswer} {
			s.engineAt("e:1", after(2*time.Second, engine))
			s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
			for _, body := range []string{plainRequest, streamRequest} {
				defer s.beside(func() { s.chat(body) })()
			}
			s.act.Remove(testFunction("tiny").Name)
			time.Sleep(5 * time.Second)
		}
	}},
	{name: "cold starts whose ids are in snapshots", play: func(s *stage) {
		s.silentWake = true
		s.engineAt("e:1", after(time.Second, goodAnswer))
		for i, took := range []float64{-1, 1, 5, 30} {
			f := testFunction("tiny")
			began := time.Now().Add(-3 * time.Second)
			f.ColdStart = &functions.Timeline{ID: fmt.Sprint("old-", i), Began: began, State: functions.Ready, Total: took}
			if took < 0 {
				f.ColdStart.State = functions.Loading
			}
			s.act.Publish(f)
			waits := s.beside(func() { s.chat(saying(plainRequest, f.ColdStart.ID), "X-Client-Request-Id", f.ColdStart.ID) })
			time.Sleep(time.Second)
			s.act.Publish(readyAt(f, 4, "e:1"))
			waits()
			id, ok := s.act.ColdStartOf(f.ColdStart.ID)
			s.note("%s took part in %s %v", f.ColdStart.ID, id, ok)
		}
	}},
	{name: "tools that an engine would compile", play: func(s *stage) {
		f := readyAt(testFunction("llama"), 4, "e:1")
		f.Model.Spec.Engine = functions.EngineLlamaCpp
		s.engineAt("e:1", after(time.Second, goodAnswer))
		s.act.Publish(f, readyAt(testFunction("tiny"), 4, "e:1"))
		for _, targets := range [][]string{{"llama"}, {"tiny"}, {"llama", "tiny"}} {
			s.act.SetRouters([]*functions.Router{testRouter(targets...)}, nil)
			s.chat(strings.Replace(autoRequest, "{", `{"tools":[{"name":"f","maxLength":70000}],`, 1))
		}
		s.chat(strings.Replace(plainRequest, `{"model":"tiny"`, `{"tools":[{"name":"f","maxLength":70000}],"model":"llama"`, 1))
	}},
	{name: "a function that the host names", change: func(o *Options) { o.Adapters = &fakeAdapters{} }, play: func(s *stage) {
		s.engineAt("e:1", after(time.Second, goodAnswer))
		s.engineAt("cloud:1", after(time.Second, goodAnswer))
		s.publish(withAdapters(readyAt(testFunction("tiny"), 4, "e:1"), []string{"pirate"}), readyAt(testFunction("blue/other"), 4, "e:1"),
			testRemote("cloud", "cloud:1", functions.DataPublic))
		s.act.SetAliases([]Alias{{Name: testFunction("soon").Name, Shares: []Share{{Function: testFunction("gone").Name, Percent: 100}}}})
		s.act.SetRouters([]*functions.Router{testRouter("tiny")}, nil)
		for _, name := range []string{"tiny", "cloud", "soon", "none", "blue/other", "auto"} {
			for _, model := range []string{"x", "x:pirate", "x:none", "x:a b"} {
				for _, data := range []string{"", "hot", "secret"} {
					if data != "" && model != "x" {
						continue
					}
					c := &call.Caller{Identity: auth.Identity{Team: functions.DefaultTeam}}
					a, err := call.Do(s.t.Context(), func(req *httpserver.Request, res *httpserver.Response) {
						s.act.ServeAs(testFunction(name).Name, req, res)
					}, c, "/v1/chat/completions", []httpserver.Field{{Name: "thaw-data", Value: data}},
						[]byte(strings.Replace(plainRequest, "tiny", model, 1)))
					s.note("%s for %s %s: %d %s %v", name, model, data, a.Status, usual.Replace(string(a.Body)), err)
				}
			}
		}
		for _, name := range []string{"tiny", "blue/other"} { // of this program, without the host
			c := &call.Caller{Identity: auth.Identity{Team: functions.DefaultTeam}}
			a, err := call.Do(s.t.Context(), s.act.Serve, c, "/v1/chat/completions", nil, []byte(strings.Replace(plainRequest, "tiny", name, 1)))
			s.note("%s: %d %s %v", name, a.Status, usual.Replace(string(a.Body)), err)
		}
	}},
}
