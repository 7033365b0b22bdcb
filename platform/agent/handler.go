package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/enginehttp"
)

// Handler is the agent's HTTP API. It does not ask who calls: connections are accepted from
// the agent's server only (Node.Serve).
type Handler struct {
	agent   *Agent
	engines *upstream.Client
}

// NewHandler is the API of an agent, which reaches its engines through the client. It is
// called before the agent runs.
func NewHandler(a *Agent, engines *upstream.Client) *Handler {
	a.proxied.engines = engines
	return &Handler{agent: a, engines: engines}
}

// Serve answers one request; it is an httpserver.Handler.
func (h *Handler) Serve(req *httpserver.Request, res *httpserver.Response) {
	switch path := req.Path; {
	case path == "/load_model":
		serveCommand(req, res, func(ctx context.Context, m functions.LoadRequest) (any, error) { return h.agent.Load(ctx, m) }, 202)
	case path == "/unload_model":
		serveCommand(req, res, func(ctx context.Context, m functions.UnloadRequest) (any, error) {
			err := h.agent.Unload(ctx, m)
			return h.reply(m.ID), err
		}, 202)
	case path == "/sleep_model":
		serveCommand(req, res, func(ctx context.Context, m functions.SleepRequest) (any, error) {
			err := h.agent.Sleep(ctx, m)
			return h.reply(m.ID), err
		}, 202)
	case path == "/load_adapter":
		serveCommand(req, res, func(ctx context.Context, m functions.AdapterRequest) (any, error) {
			err := h.agent.LoadAdapter(ctx, m)
			return h.reply(m.ID), err
		}, 200)
	case path == "/heartbeat":
		if !enginehttp.AllowMethod("POST", req, res) {
			return
		}
		hb, err := h.agent.Heartbeat()
		if err != nil {
			refuse(res, err)
			return
		}
		enginehttp.WriteJSON(res, 200, hb)
	case path == "/infer":
		if enginehttp.AllowMethod("POST", req, res) {
			h.infer(req, res)
		}
	case strings.HasPrefix(path, "/replicas/"):
		id, rest, _ := strings.Cut(strings.TrimPrefix(path, "/replicas/"), "/")
		r := h.agent.replicaByID(id)
		switch {
		case rest == "logs" && req.Method == "GET":
			h.logs(id, req, res)
		case r == nil:
			setError(res, 404, codeNoReplica, "no replica "+functions.Clip(id)+" here")
		case rest == "verify" && req.Method == "POST":
			h.agent.Verify(req.Context(), id, functions.Clip(string(req.Body)))
			enginehttp.WriteJSON(res, 202, functions.LoadReply{ID: id, State: r.Status().State})
		default:
			h.proxy(r, "/"+rest, req, res)
		}
	default:
		setError(res, 404, "unknown_endpoint",
			"an agent has /load_model, /unload_model, /sleep_model, /load_adapter, /heartbeat, /infer and /replicas/ID/…")
	}
}

// serveCommand decodes a command, runs it and answers with its reply and status.
func serveCommand[T any](req *httpserver.Request, res *httpserver.Response, run func(context.Context, T) (any, error), status int) {
	var command T
	if !enginehttp.AllowMethod("POST", req, res) || !decode(req, res, &command) {
		return
	}
	reply, err := run(req.Context(), command)
	if err != nil {
		refuse(res, err)
		return
	}
	enginehttp.WriteJSON(res, status, reply)
}

// reply is a replica and its state now; a replica that is not here is UNLOADED.
func (h *Handler) reply(id string) functions.LoadReply {
	if r := h.agent.replicaByID(id); r != nil {
		return functions.LoadReply{ID: id, State: r.Status().State}
	}
	return functions.LoadReply{ID: id, State: functions.Unloaded}
}

// infer passes a request on to a READY replica of the model in its body.
func (h *Handler) infer(req *httpserver.Request, res *httpserver.Response) {
	path := openai.InferPath(req.Body)
	e, refused := enginehttp.CheckRequest(req, path, "") // proxy checks it again
	if refused != nil {
		res.Refuse(refused)
		return
	}
	_, name, found := strings.Cut(e.Model, "/")
	if !found {
		name = e.Model
	}
	name, _, _ = strings.Cut(name, ":")
	h.agent.mu.Lock()
	var r *managedReplica
	for _, x := range h.agent.replicas {
		st := x.Status()
		if st.Model == name && st.State == functions.Ready && (!found || st.Team+"/"+st.Model == strings.SplitN(e.Model, ":", 2)[0]) {
			r = x
		}
	}
	h.agent.mu.Unlock()
	if r == nil {
		setError(res, 404, "model_not_found", "no READY replica of "+functions.Clip(e.Model)+" here")
		return
	}
	h.proxy(r, path, req, res)
}

// proxy passes a request on to a replica's engine. Only the paths that clients may use are
// passed, with bodies within all bounds: a server may start and stop
// engines, which includes no right to have an engine load code, report its requests or
// send some.
func (h *Handler) proxy(r *managedReplica, path string, req *httpserver.Request, res *httpserver.Response) {
	if !openai.Public(path) {
		setError(res, 404, "unknown_endpoint", "no engine is asked "+functions.Clip(path)+" through its agent")
		return
	}
	if !enginehttp.AllowMethod("POST", req, res) {
		return
	}
	if _, e := enginehttp.CheckRequest(req, path, r.Engine()); e != nil {
		res.Refuse(e)
		return
	}
	st := r.Status()
	if st.State != functions.Ready && st.State != functions.Draining || st.Endpoint == "" {
		setError(res, 503, "replica_not_ready", fmt.Sprintf("replica %s is %s", r.id, st.State))
		return
	}
	h.agent.proxied.add(r.id, 1)
	err := enginehttp.Forward(h.engines, req, res, enginehttp.Call{
		Engine: st.Endpoint, Key: st.Key, Method: req.Method, Path: path, Body: enginehttp.BodyOf(req),
		Done: func() { h.agent.proxied.add(r.id, -1) },
	})
	if err != nil {
		h.agent.proxied.add(r.id, -1)
		if errors.Is(err, upstream.ErrCut) {
			setError(res, 504, "engine_hung", "the engine of replica "+r.id+" was ended before it answered")
			return
		}
		r.Suspect("the proxy: " + err.Error())
		setError(res, 502, "engine_crashed", "the engine of replica "+r.id+" did not answer")
	}
}

func decode(req *httpserver.Request, res *httpserver.Response, v any) bool {
	err := json.Unmarshal(req.Body, v)
	if err != nil {
		setError(res, 400, "invalid_json", "the body is not what is expected here: "+err.Error())
	}
	return err == nil
}

// refuse answers with the status of a command's error.
func refuse(res *httpserver.Response, err error) {
	switch {
	case errors.Is(err, functions.ErrStaleEpoch):
		setError(res, 409, codeStale, err.Error())
	case errors.Is(err, ErrNoReplica):
		setError(res, 404, codeNoReplica, err.Error())
	case errors.Is(err, ErrBadRequest):
		setError(res, 400, "invalid_value", err.Error())
	case errors.Is(err, ErrStarting):
		res.Set("Retry-After", "1")
		setError(res, 503, "agent_starting", err.Error())
	default:
		if e, ok := errors.AsType[*functions.AdapterError](err); ok {
			status := 503
			switch e.Code {
			case "adapter_not_found":
				status = 404
			case "adapter_invalid":
				status = 400
			}
			setError(res, status, e.Code, e.Message)
			return
		}
		setError(res, 500, "internal_error", err.Error())
	}
}

const (
	codeStale     = "stale_epoch"
	codeNoReplica = "replica_not_found"
)

type problem struct {
	Error struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    string `json:"code"`
	} `json:"error"`
}

func setError(res *httpserver.Response, status int, code, message string) {
	var p problem
	p.Error.Message, p.Error.Code, p.Error.Type = message, code, "invalid_request_error"
	if status >= 500 {
		p.Error.Type = "server_error"
	}
	enginehttp.WriteJSON(res, status, p)
}

// proxiedRequests are the requests that this agent proxies.
type proxiedRequests struct {
	engines *upstream.Client // sends them; nil without a Handler

	mu       sync.Mutex
	inFlight map[string]int // by replica
}

func (p *proxiedRequests) InFlightOf(_ functions.Name, id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inFlight[id]
}

func (p *proxiedRequests) AbortThrough(url string) {
	if p.engines != nil {
		p.engines.AbortThrough(url)
	}
}

func (p *proxiedRequests) Traffic(url string) functions.Traffic {
	if p.engines == nil {
		return functions.Traffic{}
	}
	return p.engines.Traffic(url)
}

func (p *proxiedRequests) add(id string, d int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inFlight[id] += d; p.inFlight[id] <= 0 {
		delete(p.inFlight, id)
	}
}
