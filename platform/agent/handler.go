package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Handler is the agent's HTTP face. Every path wants the token.
type Handler struct {
	agent   *Agent
	token   [sha256.Size]byte
	engines *upstream.Client
}

// NewHandler is the face of an agent; engines is how it reaches them.
func NewHandler(a *Agent, token string, engines *upstream.Client) *Handler {
	return &Handler{agent: a, token: sha256.Sum256([]byte(token)), engines: engines}
}

// maxTail bounds how much of a log is given.
const maxTail = 1 << 20

// Serve answers one request; it is a httpserver.Handler.
func (d *Handler) Serve(req *httpserver.Request, res *httpserver.Response) {
	if !d.authorized(req.Header("Authorization")) {
		res.Set("WWW-Authenticate", "Bearer")
		fail(res, 401, "invalid_api_key", "this is an agent: it wants the join token")
		return
	}
	switch path := req.Path; {
	case path == "/load_model":
		if !post(req, res) {
			return
		}
		var m functions.LoadRequest
		if !decode(req, res, &m) {
			return
		}
		reply, err := d.agent.Load(req.Context(), m)
		if err != nil {
			refuse(res, err)
			return
		}
		answer(res, 202, reply)
	case path == "/unload_model":
		if !post(req, res) {
			return
		}
		var m functions.UnloadRequest
		if !decode(req, res, &m) {
			return
		}
		if err := d.agent.Unload(req.Context(), m); err != nil {
			refuse(res, err)
			return
		}
		answer(res, 202, functions.LoadReply{ID: m.ID, State: d.state(m.ID)})
	case path == "/sleep_model":
		if !post(req, res) {
			return
		}
		var m functions.SleepRequest
		if !decode(req, res, &m) {
			return
		}
		if err := d.agent.Sleep(req.Context(), m); err != nil {
			refuse(res, err)
			return
		}
		answer(res, 202, functions.LoadReply{ID: m.ID, State: d.state(m.ID)})
	case path == "/load_adapter":
		if !post(req, res) {
			return
		}
		var m functions.AdapterRequest
		if !decode(req, res, &m) {
			return
		}
		if err := d.agent.LoadAdapter(req.Context(), m); err != nil {
			refuse(res, err)
			return
		}
		answer(res, 200, functions.LoadReply{ID: m.ID, State: d.state(m.ID)})
	case path == "/heartbeat":
		if !post(req, res) {
			return
		}
		hb, err := d.agent.Heartbeat()
		if err != nil {
			refuse(res, err)
			return
		}
		answer(res, 200, hb)
	case path == "/infer":
		if post(req, res) {
			d.infer(req, res)
		}
	case strings.HasPrefix(path, "/replicas/"):
		id, rest, _ := strings.Cut(strings.TrimPrefix(path, "/replicas/"), "/")
		h := d.agent.replicaByID(id)
		switch {
		case h == nil:
			fail(res, 404, codeNoReplica, "no replica "+clip(id)+" here")
		case rest == "logs" && req.Method == "GET":
			d.logs(h, req, res)
		case rest == "verify" && req.Method == "POST":
			d.agent.Verify(req.Context(), id, clip(string(req.Body)))
			answer(res, 202, functions.LoadReply{ID: id, State: h.Status().State})
		default:
			d.proxy(h, "/"+rest, req, res)
		}
	default:
		fail(res, 404, "unknown_endpoint", "an agent has /load_model, /unload_model, /sleep_model, /load_adapter, /heartbeat, /infer and /replicas/ID/…")
	}
}

// authorized compares digests, so neither bytes nor length of the token show in the time.
func (d *Handler) authorized(authorization string) bool {
	secret, ok := strings.CutPrefix(authorization, "Bearer ")
	sum := sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(sum[:], d.token[:]) == 1 && ok
}

func (d *Handler) state(id string) functions.State {
	if h := d.agent.replicaByID(id); h != nil {
		return h.Status().State
	}
	return functions.Unloaded
}

// infer sends a body to a READY replica of the model it names.
func (d *Handler) infer(req *httpserver.Request, res *httpserver.Response) {
	e, err := openai.Peek(req.Body)
	if err != nil {
		fail(res, 400, "invalid_json", err.Error())
		return
	}
	_, name, found := strings.Cut(e.Model, "/")
	if !found {
		name = e.Model
	}
	name, _, _ = strings.Cut(name, ":")
	d.agent.mu.Lock()
	var h *managedReplica
	for _, x := range d.agent.replicas {
		st := x.Status()
		if st.Model == name && st.State == functions.Ready && (!found || st.Team+"/"+st.Model == strings.SplitN(e.Model, ":", 2)[0]) {
			h = x
		}
	}
	d.agent.mu.Unlock()
	if h == nil {
		fail(res, 404, "model_not_found", "no READY replica of "+clip(e.Model)+" here")
		return
	}
	path := "/v1/chat/completions"
	var asks struct {
		Messages json.RawMessage `json:"messages"`
	}
	if json.Unmarshal(req.Body, &asks) == nil && asks.Messages == nil {
		path = "/v1/completions"
	}
	d.proxy(h, path, req, res)
}

// passed are the fields that go to an engine; all else stays with us.
var passed = []string{"Content-Type", "Accept", "Traceparent", "X-Request-Id"}

// proxy streams a request to a replica's engine and its answer back. Only what
// clients may reach goes through: whoever has our token may start and stop
// engines, which is no right to have one load code or tell of its requests.
func (d *Handler) proxy(h *managedReplica, path string, req *httpserver.Request, res *httpserver.Response) {
	if !openai.Public(path) {
		fail(res, 404, "unknown_endpoint", "no engine is asked "+clip(path)+" through its agent")
		return
	}
	if !post(req, res) {
		return
	}
	u, err := url.Parse(h.Status().Endpoint)
	if st := h.Status().State; (st != functions.Ready && st != functions.Draining) || err != nil || u.Host == "" {
		fail(res, 503, "replica_not_ready", fmt.Sprintf("replica %s is %s", h.id, st))
		return
	}
	up := &upstream.Request{Addr: u.Host, Method: req.Method, Path: path}
	for _, name := range passed {
		if v := req.Header(name); v != "" {
			up.Fields = append(up.Fields, upstream.Field{Name: name, Value: v})
		}
	}
	if key := h.Status().Key; key != "" {
		up.Fields = append(up.Fields, upstream.Field{Name: "Authorization", Value: "Bearer " + key})
	}
	if len(req.Body) > 0 {
		up.Body = [][]byte{req.Body}
	}
	d.agent.proxied.add(h.id, 1)
	from, err := d.engines.Do(req.Context(), up)
	if err != nil {
		d.agent.proxied.add(h.id, -1)
		h.Suspect("the proxy: " + err.Error())
		fail(res, 502, "engine_crashed", "the engine of replica "+h.id+" did not answer")
		return
	}
	res.Status = from.Status
	res.Length = from.Length
	for _, f := range from.Fields {
		res.Set(f.Name, f.Value)
	}
	res.Stream = &relay{from: from, done: func() { d.agent.proxied.add(h.id, -1) }}
}

// relay is an engine's answer on its way through.
type relay struct {
	from *upstream.Response
	done func()
}

func (r *relay) Read(p []byte) (int, error) { return r.from.Read(p) }

func (r *relay) Close() error {
	r.done()
	return r.from.Close()
}

// logs gives the end of an engine's log: ?tail=LINES (200), ?follow=true goes on.
func (d *Handler) logs(h *managedReplica, req *httpserver.Request, res *httpserver.Response) {
	q, err := url.ParseQuery(req.Query)
	if err != nil {
		fail(res, 400, "invalid_value", "the query cannot be read")
		return
	}
	lines := 200
	if v := q.Get("tail"); v != "" {
		if lines, err = strconv.Atoi(v); err != nil || lines < 0 {
			fail(res, 400, "invalid_value", "tail is a number of lines")
			return
		}
	}
	log, err := d.agent.Logs(req.Context(), h.id, lines, q.Get("follow") == "true")
	if err != nil {
		fail(res, 404, "log_not_found", err.Error())
		return
	}
	res.Set("Content-Type", "text/plain; charset=utf-8")
	res.Stream, res.Length = log, -1
}

// ErrNoLog says that a replica has written nothing yet, or is not here.
var ErrNoLog = errors.New("no log")

// Logs opens the log of a replica from its last lines on; with follow it goes
// on until ctx or the replica ends.
func (a *Agent) Logs(ctx context.Context, id string, lines int, follow bool) (io.ReadCloser, error) {
	h := a.replicaByID(id)
	if h == nil {
		return nil, fmt.Errorf("replica %s: %w here", clip(id), ErrNoLog)
	}
	path := h.LogPath()
	if path == "" {
		return nil, fmt.Errorf("replica %s has started no engine yet: %w", id, ErrNoLog)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("replica %s: %w (%w)", id, ErrNoLog, err)
	}
	start, err := tailOffset(f, lines)
	if err == nil {
		_, err = f.Seek(start, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("replica %s: %w", id, err)
	}
	if !follow {
		return f, nil
	}
	return &follower{ctx: ctx, f: f, path: path, over: func() bool { return h.Status().State.Over() }}, nil
}

// tailOffset is where the last lines of f begin, at most maxTail before its end.
func tailOffset(f *os.File, lines int) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	from := max(0, st.Size()-maxTail)
	b := make([]byte, st.Size()-from)
	if _, err := f.ReadAt(b, from); err != nil && err != io.EOF {
		return 0, err
	}
	end := len(b)
	if end > 0 && b[end-1] == '\n' {
		end--
	}
	if lines == 0 {
		return st.Size(), nil
	}
	for range lines {
		i := bytes.LastIndexByte(b[:end], '\n')
		if i < 0 {
			return from, nil
		}
		end = i
	}
	return from + int64(end) + 1, nil
}

// follower reads a log as it grows. A log is turned over by size: then the file
// under the name is another, and it goes on there.
type follower struct {
	ctx  context.Context
	f    *os.File
	path string
	over func() bool
}

const followEvery = 200 * time.Millisecond

func (l *follower) Read(p []byte) (int, error) {
	for last := false; ; {
		n, err := l.f.Read(p)
		if n > 0 || err != io.EOF {
			return n, err
		}
		if l.turned() {
			continue
		}
		if last {
			return 0, io.EOF
		}
		if l.over() {
			last = true // once more: its last lines may have just come
			continue
		}
		select {
		case <-l.ctx.Done():
			return 0, io.EOF
		case <-time.After(followEvery):
		}
	}
}

func (l *follower) turned() bool {
	now, err := os.Stat(l.path)
	if err != nil {
		return false
	}
	was, err := l.f.Stat()
	if err != nil || os.SameFile(was, now) {
		return false
	}
	f, err := os.Open(l.path)
	if err != nil {
		return false
	}
	l.f.Close()
	l.f = f
	return true
}

func (l *follower) Close() error { return l.f.Close() }

func post(req *httpserver.Request, res *httpserver.Response) bool {
	if req.Method == "POST" {
		return true
	}
	res.Set("Allow", "POST")
	fail(res, 405, "method_not_allowed", req.Path+" wants POST")
	return false
}

func decode(req *httpserver.Request, res *httpserver.Response, v any) bool {
	d := json.NewDecoder(bytes.NewReader(req.Body))
	if err := d.Decode(v); err != nil {
		fail(res, 400, "invalid_json", "the body is not what is expected here: "+err.Error())
		return false
	}
	if _, err := d.Token(); err != io.EOF {
		fail(res, 400, "invalid_json", "the body goes on after its end")
		return false
	}
	return true
}

func answer(res *httpserver.Response, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		fail(res, 500, "internal_error", err.Error())
		return
	}
	res.Status = status
	res.Set("Content-Type", "application/json")
	res.Body = append(b, '\n')
}

// refuse turns an error of a command into its status.
func refuse(res *httpserver.Response, err error) {
	switch {
	case errors.Is(err, functions.ErrStaleEpoch):
		fail(res, 409, codeStale, err.Error())
	case errors.Is(err, ErrNoReplica):
		fail(res, 404, codeNoReplica, err.Error())
	case errors.Is(err, ErrBadRequest):
		fail(res, 400, "invalid_value", err.Error())
	case errors.Is(err, ErrStarting):
		res.Set("Retry-After", "1")
		fail(res, 503, "agent_starting", err.Error())
	default:
		if e, ok := errors.AsType[*functions.AdapterError](err); ok {
			status := 503
			switch e.Code {
			case "adapter_not_found":
				status = 404
			case "adapter_invalid":
				status = 400
			}
			fail(res, status, e.Code, e.Message)
			return
		}
		fail(res, 500, "internal_error", err.Error())
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

func fail(res *httpserver.Response, status int, code, message string) {
	var p problem
	p.Error.Message, p.Error.Code, p.Error.Type = message, code, "invalid_request_error"
	if status >= 500 {
		p.Error.Type = "server_error"
	}
	answer(res, status, p)
}

func clip(s string) string {
	if len(s) > 80 {
		s = s[:80]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}
