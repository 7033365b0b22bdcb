package socket

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// predict answers POST /predict?text=TEXT[&router=NAME] with the record of the decision.
func (s *Server) predict(req *httpserver.Request, res *httpserver.Response) *openai.Error {
	if e := allowMethods(req, "POST"); e != nil {
		return e
	}
	id, e := s.o.Caller(req.Header)
	if e != nil {
		return e
	}
	q, err := url.ParseQuery(req.Query)
	o := &socket{s: s, id: id, router: functions.AutoRouter}
	text := q["text"]
	if r := q["router"]; len(r) == 1 && r[0] != "" {
		o.router = r[0]
		delete(q, "router")
	}
	if delete(q, "text"); err != nil || len(q) > 0 || len(text) != 1 || text[0] == "" {
		return openai.New(openai.InvalidValue, "The query is text, percent-encoded, and optionally router.").With("text")
	}
	body, err := o.body(text[0], nil)
	if err != nil {
		return openai.New(openai.InvalidValue, "The text is not UTF-8.").With("text")
	}
	rec, e := s.o.Decide(id, o.router, generatePath, req.Header, body, nil)
	if e != nil {
		return e
	}
	if res.Body, err = json.Marshal(rec); err != nil {
		return openai.New(openai.InternalError, "")
	}
	res.Set("content-type", "application/json")
	res.Set("cache-control", "no-store")
	res.Set("x-request-id", openai.NewID())
	return nil
}

func allowMethods(req *httpserver.Request, allowed ...string) *openai.Error {
	if slices.Contains(allowed, req.Method) {
		return nil
	}
	e := openai.New(openai.MethodNotAllowed, "Use "+allowed[0]+" here.")
	e.Allow = strings.Join(allowed, ", ")
	return e
}

// serveHealth answers that this program serves; /readyz tells more.
func serveHealth(req *httpserver.Request, res *httpserver.Response) *openai.Error {
	if e := allowMethods(req, "GET", "HEAD"); e != nil {
		return e
	}
	res.Body = []byte(`{"status":"ok"}`)
	res.Set("content-type", "application/json")
	res.Set("cache-control", "no-store")
	return nil
}
