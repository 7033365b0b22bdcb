package api

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/loader"
)

// Cache is what the nodes have.
type Cache struct {
	Items  []functions.CacheEntry `json:"items"`
	Silent []string               `json:"silent,omitempty"` // nodes that did not answer
}

// Caches are the stores of weights and the cache of answers.
type Caches struct {
	Stores functions.Stores
	// ForgetAnswers drops the answers of a function from the cache and returns how many
	// there were; nil: the data path is another process.
	ForgetAnswers func(name functions.Name) int
}

// cacheHandlers answers for Caches.
type cacheHandlers struct {
	Caches
	functions *functionHandlers
}

// PrefetchRequest asks for a model's weights, or a source's files, on a node.
type PrefetchRequest struct {
	Model  string   `json:"model,omitempty"` // NAME or TEAM/NAME
	Source string   `json:"source,omitempty"`
	Node   string   `json:"node,omitempty"` // "": the one with the most room
	Digest string   `json:"digest,omitempty"`
	Files  []string `json:"files,omitempty"` // of a source: patterns of files beside the list, as spec.files of a model
	Pin    bool     `json:"pin,omitempty"`
}

type StoreReply struct {
	Digest string   `json:"digest"`
	Nodes  []string `json:"nodes"`
}

// storeFailure is an error of a store on the wire: its own code, and what to do.
func storeFailure(err error) *openai.Error {
	e, ok := errors.AsType[*functions.StoreError](err)
	if !ok {
		return openai.New(openai.InternalError, "The store could not be asked: "+err.Error())
	}
	code := openai.InternalError
	switch e.Status() {
	case 400:
		code = openai.InvalidValue
	case 404:
		code = openai.NotFound
	case 409:
		code = openai.Conflict
	}
	out := openai.New(code, e.Message)
	out.Status, out.Code = e.Status(), openai.Code(e.Code)
	return out
}

func (c *cacheHandlers) list(x *exchange, res *httpserver.Response) *openai.Error {
	list, silent, err := c.Stores.Cached(x.Context(), x.query["node"])
	if err != nil {
		return storeFailure(err)
	}
	return writeJSON(res, Cache{Items: orEmpty(list), Silent: silent})
}

type ForgottenAnswers struct {
	Function string `json:"function"`
	Dropped  int    `json:"dropped"`
}

func (c *cacheHandlers) forgetAnswers(x *exchange, res *httpserver.Response) *openai.Error {
	name, err := functions.ParseName(x.query["function"], x.ownTeam())
	if err != nil {
		return openai.New(openai.InvalidValue, "function: "+err.Error()).With("function")
	}
	d, bad := c.functions.lookup(x, name)
	if bad != nil {
		return bad.With("function")
	}
	if d.Router != nil {
		return openai.New(openai.InvalidValue,
			name.String()+" is a Router: its answers are kept for its targets; name one of them.").With("function")
	}
	return writeJSON(res, ForgottenAnswers{Function: d.FullName().String(), Dropped: c.ForgetAnswers(d.FullName())})
}

// act is an endpoint that does one thing to a checkpoint.
func (c *cacheHandlers) act(act functions.StoreAction) handler {
	return func(x *exchange, res *httpserver.Response) *openai.Error {
		digest, bad := x.digest()
		if bad != nil {
			return bad
		}
		nodes, err := c.Stores.ChangeCheckpoint(x.Context(), x.query["node"], digest, act)
		if err != nil {
			return storeFailure(err)
		}
		return writeJSON(res, StoreReply{Digest: digest, Nodes: nodes})
	}
}

// digest of the path: a colon is no part of a plain word, so it is the hex alone.
func (e *exchange) digest() (string, *openai.Error) {
	h := e.args[0]
	if len(h) != 64 && len(h) != 32 || strings.Trim(h, "0123456789abcdef") != "" {
		return "", openai.New(openai.InvalidValue, "A checkpoint is named by the 64 hex digits of its digest, without sha256: before them; "+
			"an unfinished download by its 32, without part:.")
	}
	return functions.DigestOfHex(h), nil
}

func (c *cacheHandlers) verify(x *exchange, res *httpserver.Response) *openai.Error {
	digest, bad := x.digest()
	if bad != nil {
		return bad
	}
	return streamProgress(x, res, func(ctx context.Context, report func(functions.StoreProgress)) error {
		return c.Stores.VerifyCheckpoint(ctx, x.query["node"], digest, report)
	})
}

func (c *cacheHandlers) prefetch(x *exchange, body PrefetchRequest, res *httpserver.Response) *openai.Error {
	if (body.Model == "") == (body.Source == "") {
		return openai.New(openai.InvalidValue, "Give model or source, one of them.").With(cmp.Or(map[bool]string{true: "source"}[body.Model != ""], "model"))
	}
	if body.Model != "" && len(body.Files) > 0 {
		return openai.New(openai.InvalidValue, "A model file says itself which files are staged; files go with a source.").With("files")
	}
	if p := functions.CheckPatterns("files", body.Files); len(p) > 0 {
		return openai.New(openai.InvalidValue, p[0].String()).With("files")
	}
	r := functions.PrefetchRequest{Source: body.Source, Digest: body.Digest, Files: body.Files, Pin: body.Pin}
	if body.Model != "" {
		name, err := functions.ParseName(body.Model, functions.DefaultTeam)
		if err != nil {
			return openai.New(openai.InvalidValue, err.Error()).With("model")
		}
		m, bad := c.functions.find(x, name)
		if bad != nil {
			return bad
		}
		r.Source, r.Dir, r.Files = m.Spec.Source, m.Dir, m.Spec.StagedFiles()
	}
	return streamProgress(x, res, func(ctx context.Context, report func(functions.StoreProgress)) error {
		return c.Stores.Prefetch(ctx, body.Node, r, func(p functions.StoreProgress) {
			if p.State == "ready" {
				c.forgetAnswersOf(r.Source, r.Dir)
			}
			report(p)
		})
	})
}

// forgetAnswersOf drops the answers of all models of a source, which may have other weights
// now.
func (c *cacheHandlers) forgetAnswersOf(source, dir string) {
	_, staged, err := loader.Locate(source, dir)
	if err != nil || c.ForgetAnswers == nil {
		return
	}
	for _, m := range c.functions.Catalog.Models() {
		if _, at, err := loader.Locate(m.Spec.Source, m.Dir); err == nil && at == staged {
			c.ForgetAnswers(m.FullName())
		}
	}
}

// streamProgress answers with a stream of progress, or with the error of what never
// began. It ends when the client leaves: what was asked for is called off then.
func streamProgress(x *exchange, res *httpserver.Response,
	produce func(context.Context, func(functions.StoreProgress)) error) *openai.Error {
	if err := httpserver.StreamLines(x.Request, res, produce); err != nil {
		return storeFailure(err)
	}
	res.Set("x-accel-buffering", "no")
	return nil
}
