// Package enginehttp has the functions of the reverse proxy in front of an engine: it checks that a
// request's path is public and its body within bounds, forwards it with the engine's key in place
// of the client's, and writes the answer or an error; it authenticates no client and is no server
// itself. By such a proxy activators on other machines reach an engine: one is in each agent, and
// one in the shim of each pod.
package enginehttp

import (
	"encoding/json"
	"errors"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// passedFields are the request's header fields that an engine gets. All others,
// the client's Authorization among them, are dropped. X-Request-Id is made anew.
var passedFields = []string{"Content-Type", "Accept", "Traceparent"}

// MaxBody bounds the body of a request that came through a gateway: the default of its
// --max-body, and room for what it adds to a body (openai.Envelope.Splice).
const MaxBody = 32<<20 + 16<<10

type Call struct {
	Engine       string // its URL
	Key          string // the engine's API key; "" is none
	Method, Path string
	Body         [][]byte
	// FirstByte, if not nil, is called when the first bytes of the answer's body
	// are read.
	FirstByte func()
	// Done, if not nil, is called when the answer's stream is closed. It is not
	// called if Forward returns an error.
	Done func()
}

// Forward sends a request to an engine and makes its answer the response, as a
// stream. If it returns an error, which is upstream's, it has not touched res.
func Forward(engines *upstream.Client, req *httpserver.Request, res *httpserver.Response, c Call) error {
	addr, _ := upstream.SplitEndpoint(c.Engine)
	up := &upstream.Request{Addr: addr, Method: c.Method, Path: c.Path, Body: c.Body,
		Fields: make([]upstream.Field, 0, len(passedFields)+2)}
	for _, name := range passedFields {
		if v := req.Header(name); v != "" {
			up.Fields = append(up.Fields, upstream.Field{Name: name, Value: v})
		}
	}
	up.Fields = append(up.Fields, upstream.Field{Name: "X-Request-Id", Value: openai.NewEngineID(req.Header("X-Request-Id"))})
	if c.Key != "" {
		up.Fields = append(up.Fields, upstream.Field{Name: "Authorization", Value: "Bearer " + c.Key})
	}
	from, err := engines.Do(req.Context(), up)
	if err != nil {
		return err
	}
	res.Status, res.Length = from.Status, from.Length
	for _, f := range from.Fields {
		res.Set(f.Name, f.Value)
	}
	if v := from.UnsolicitedValue(); v != "" {
		res.Set(upstream.UnsolicitedHeader, v)
	}
	res.Stream = &relay{from: from, firstByte: c.FirstByte, done: c.Done}
	return nil
}

// relay is an engine's answer as the stream of a response.
type relay struct {
	from            *upstream.Response
	firstByte, done func() // nil: nothing to call
}

func (r *relay) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if n > 0 && r.firstByte != nil {
		r.firstByte()
		r.firstByte = nil
	}
	return n, err
}

func (r *relay) Close() error {
	err := r.from.Close()
	if r.done != nil {
		r.done()
	}
	return err
}

// BodyOf is a request's body as the engine's client takes it.
func BodyOf(req *httpserver.Request) [][]byte {
	if len(req.Body) == 0 {
		return nil
	}
	return [][]byte{req.Body}
}

// CheckRequest is the last check of a client's request before an engine: the path is
// public, and the body is within all bounds of openai and of the engine. The gateway has
// checked the same, but a request need not have come through it.
func CheckRequest(req *httpserver.Request, path string, engine functions.Engine) (openai.Envelope, *openai.Error) {
	if !openai.Public(path) {
		return openai.Envelope{}, openai.New(openai.UnknownEndpoint, "No engine is sent requests for "+functions.Clip(path)+".")
	}
	env, err := openai.PeekPublic(path, req.Header("Content-Type"), req.Body)
	if err == nil {
		return env, env.CheckTools(engine)
	}
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return env, e
	}
	return env, openai.New(openai.InvalidJSON, err.Error())
}

// AllowMethod reports whether the request has the method; if not it answers 405.
func AllowMethod(method string, req *httpserver.Request, res *httpserver.Response) bool {
	if req.Method == method {
		return true
	}
	e := openai.New(openai.MethodNotAllowed, "Use "+method+" here.")
	e.Allow = method
	res.Refuse(e)
	return false
}

func WriteJSON(res *httpserver.Response, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		res.Refuse(openai.New(openai.InternalError, err.Error()))
		return
	}
	res.Status = status
	res.Set("Content-Type", "application/json")
	res.Body = append(b, '\n')
}

// WriteText answers with a status and a line of text.
func WriteText(res *httpserver.Response, status int, line string) {
	res.Status = status
	res.Set("Content-Type", "text/plain; charset=utf-8")
	res.Body = []byte(line + "\n")
}
