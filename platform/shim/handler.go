package shim

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/enginehttp"
)

// serve answers one request; it is a httpserver.Handler.
func (s *Shim) serve(req *httpserver.Request, res *httpserver.Response) {
	switch path := req.Path; {
	case openai.Public(path):
		if enginehttp.AllowMethod("POST", req, res) {
			s.proxy(req, res, "POST", path)
		}
	case path == "/readyz":
		s.serveReady(req, res)
	case path == "/livez":
		st := s.rep.Status()
		status := 200
		if st.State.Over() {
			status = 503
		}
		enginehttp.WriteText(res, status, st.State.Word())
	case path == "/timeline":
		if enginehttp.AllowMethod("GET", req, res) {
			enginehttp.WriteJSON(res, 200, s.timeline())
		}
	case path == "/infer":
		if enginehttp.AllowMethod("POST", req, res) {
			s.proxy(req, res, "POST", openai.InferPath(req.Body))
		}
	case path == "/v1/models":
		if enginehttp.AllowMethod("GET", req, res) {
			s.proxy(req, res, "GET", path)
		}
	default:
		res.Refuse(openai.New(openai.UnknownEndpoint, "The pod of a model has no "+functions.Clip(path)+"."))
	}
}

// serveReady answers 200 after the engine's first token, until a drain begins.
func (s *Shim) serveReady(_ *httpserver.Request, res *httpserver.Response) {
	st := s.rep.Status()
	switch {
	case st.State == functions.Ready && !s.draining.Load():
		enginehttp.WriteText(res, 200, "ready")
		return
	case st.State == functions.Ready:
		st.State = functions.Draining
	}
	word := st.State.Word()
	if st.Percent >= 0 {
		word = fmt.Sprintf("%s, %d %%", word, st.Percent)
	}
	if st.Error != "" {
		word += ": " + st.Error
	}
	enginehttp.WriteText(res, 503, word)
}

// timeline is the start so far.
func (s *Shim) timeline() functions.Timeline {
	st := s.adjustStatus(s.rep.Status())
	t := functions.Timeline{
		Function: s.o.Model.FullName().String(), Start: st.Start, StartNote: st.StartNote, Node: s.loader.Node(),
		Began: s.began, State: st.State, Tier: st.Tier, Bytes: st.Bytes, Phases: st.Phases, Error: st.Error,
		Total:    time.Since(s.began).Seconds(),
		Progress: functions.Progress{State: st.State, Percent: st.Percent, Bytes: st.Bytes, Total: st.TotalBytes},
	}
	if at := s.readyAt.Load(); at != 0 {
		t.Total = time.Unix(0, at).Sub(s.began).Seconds()
	}
	t.Phases = append(slices.Clone(t.Phases), s.first.span(s.readyAt.Load(), t.Total)...)
	if t.Phases == nil {
		t.Phases = []functions.Span{}
	}
	return t
}

// firstRequest is the first request to a READY engine: when it was passed on, and when the
// answer began, in unix nanoseconds; 0 is not yet. early is that it was here before READY.
type firstRequest struct {
	arrived, answered atomic.Int64
	early             atomic.Bool
}

// firstTokenWithin is how soon after READY a request comes that waited for it. A later one
// measures its client, not the start.
const firstTokenWithin = time.Second

// claim reports whether a request is the first.
func (f *firstRequest) claim() bool {
	return f.arrived.Load() == 0 && f.arrived.CompareAndSwap(0, time.Now().UnixNano())
}

// span is the way of the first request, by this machine's clock alone: until it was
// here after READY, or was let through where it had been sent ahead (release), and
// until the engine's first bytes (engine). total is when READY was, in seconds of the
// timeline. It is nil if no request waited.
func (f *firstRequest) span(ready int64, total float64) []functions.Span {
	arrived, answered := f.arrived.Load(), f.answered.Load()
	if ready == 0 || arrived == 0 || answered == 0 || !f.early.Load() && time.Duration(arrived-ready) > firstTokenWithin {
		return nil
	}
	release, engine := max(0, time.Duration(arrived-ready).Seconds()), time.Duration(answered-arrived).Seconds()
	return []functions.Span{{Phase: functions.PhaseFirstToken, Start: total, Duration: release + engine, Parts: []functions.Part{
		{Name: "release", Start: total, Duration: release},
		{Name: "engine", Start: total + release, Duration: engine},
	}}}
}

// proxy passes a request on to the engine and streams its answer back. What is posted is
// checked by all bounds first: clients may reach the pod without the gateway.
func (s *Shim) proxy(req *httpserver.Request, res *httpserver.Response, method, path string) {
	var env openai.Envelope
	var body [][]byte
	if method == "POST" {
		var e *openai.Error
		if env, e = enginehttp.CheckRequest(req, path, s.o.Model.Spec.Engine); e != nil {
			res.Refuse(e)
			return
		}
		body = enginehttp.BodyOf(req)
	}
	waited := false
	if req.Header(snapshot.EarlyHeader) != "" {
		began := time.Now()
		waited = s.awaitReady(req)
		res.Set(snapshot.HeldHeader, strconv.FormatInt(time.Since(began).Microseconds(), 10))
	}
	// Counted before the state is read: a drain that sees none in flight ends the engine.
	s.inFlight.Add(1)
	passing := false
	defer func() {
		if !passing {
			s.inFlight.Add(-1)
		}
	}()
	st := s.rep.Status()
	if st.State != functions.Ready && st.State != functions.Draining || st.Endpoint == "" {
		s.refuseNotReady(res, st)
		return
	}
	mark := (*firstRequest)(nil)
	if openai.Public(path) && s.first.claim() {
		mark = &s.first
		mark.early.Store(waited)
	}
	if len(s.o.Model.Spec.Adapters) > 0 && body != nil {
		b, e := s.loadAdapter(req, env, body)
		if e != nil {
			res.Refuse(e)
			return
		}
		body = b
	}
	call := enginehttp.Call{Engine: st.Endpoint, Key: st.Key, Method: method, Path: path, Body: body,
		Done: func() { s.inFlight.Add(-1) }}
	if mark != nil {
		call.FirstByte = func() { mark.answered.Store(time.Now().UnixNano()) }
	}
	err := enginehttp.Forward(s.engines, req, res, call)
	if err != nil {
		if errors.Is(err, upstream.ErrCancelled) {
			res.Close = true // the client has left
			return
		}
		if errors.Is(err, upstream.ErrCut) {
			res.Refuse(openai.New(openai.EngineHung, "The engine was ended before it answered."))
			return
		}
		s.rep.Suspect("the pod's proxy: " + err.Error())
		res.Refuse(openai.New(openai.EngineCrashed, "The engine did not answer."))
		return
	}
	if method == "POST" && s.errors.Note(res.Status) {
		s.rep.Suspect(fmt.Sprintf("the pod's proxy: several requests in a row answered with errors, the last with HTTP %d", res.Status))
	}
	passing = true
}

// awaitReady holds a request that was sent early until the replica is READY or will not
// be, or until its client leaves. It reports whether it has waited; where maxWaiting
// requests wait already it has not, and the model is loading.
func (s *Shim) awaitReady(req *httpserver.Request) bool {
	select {
	case <-s.decided:
		return false
	default:
	}
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > maxWaiting {
		return false
	}
	select {
	case <-s.decided:
		return true
	case <-req.Context().Done():
		return false
	}
}

// refuseNotReady is the answer while there is no engine.
func (s *Shim) refuseNotReady(res *httpserver.Response, st functions.ReplicaStatus) {
	switch {
	case st.State == functions.Failed:
		res.Refuse(openai.New(openai.ModelLoadFailed, "The model could not be loaded: "+st.Error))
	case st.State.Over() || s.draining.Load():
		res.Refuse(openai.New(openai.ShuttingDown, "This pod of the model ends."))
	default:
		res.Refuse(openai.New(openai.ModelLoading, "The model is "+st.State.Word()+"."))
	}
}

// loadAdapter has the adapter that a request names loaded, and rewrites the body to the
// engine's name of it. Both NAME:ADAPTER, the clients' form, and ADAPTER, the activators',
// are accepted.
func (s *Shim) loadAdapter(req *httpserver.Request, env openai.Envelope, body [][]byte) ([][]byte, *openai.Error) {
	name, hasPrefix := strings.CutPrefix(env.Model, s.o.Model.Metadata.Name+":")
	if !slices.ContainsFunc(s.o.Model.Spec.Adapters, func(a functions.Adapter) bool { return a.Name == name }) {
		return body, nil
	}
	err := s.rep.LoadAdapter(req.Context(), name)
	if x, ok := errors.AsType[*functions.AdapterError](err); ok {
		return nil, openai.New(openai.Code(x.Code), "The adapter `"+name+"` cannot be used: "+x.Message)
	}
	if err != nil {
		return nil, openai.New(openai.AdapterUnavailable, "The adapter `"+name+"` cannot be used: "+err.Error())
	}
	if hasPrefix {
		body = env.Splice(make([][]byte, 0, 4), req.Body, name, false)
	}
	return body, nil
}
