package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/enginehttp"
	"github.com/thaw-dev/thaw/platform/nodestore"
)

// WithStore serves the node's store beside the agent:
//
//	GET  /cache                list of functions.CacheEntry
//	POST /cache/HEX/ACT        remove, pin, unpin; verify is a stream
//	POST /prefetch             functions.PrefetchRequest; a stream
//
// A stream is lines of functions.StoreProgress, until one is over.
func (h *Handler) WithStore(s *nodestore.Store) httpserver.Handler {
	return func(req *httpserver.Request, res *httpserver.Response) {
		path, under := strings.CutPrefix(req.Path, "/cache")
		if req.Path != "/prefetch" && (!under || path != "" && path[0] != '/') {
			h.Serve(req, res)
			return
		}
		var err error
		switch {
		case req.Path == "/prefetch":
			err = servePrefetch(s, req, res)
		case path == "":
			err = serveList(s, req, res)
		default:
			err = serveAct(s, strings.TrimPrefix(path, "/"), req, res)
		}
		if e, ok := errors.AsType[*functions.StoreError](err); ok {
			setError(res, e.Status(), e.Code, e.Message)
		} else if err != nil {
			setError(res, 500, "internal_error", err.Error())
		}
	}
}

func serveList(s *nodestore.Store, req *httpserver.Request, res *httpserver.Response) error {
	if !enginehttp.AllowMethod("GET", req, res) {
		return nil
	}
	list, err := s.Cached(req.Context())
	if err == nil {
		enginehttp.WriteJSON(res, 200, list)
	}
	return err
}

func serveAct(s *nodestore.Store, path string, req *httpserver.Request, res *httpserver.Response) error {
	if !enginehttp.AllowMethod("POST", req, res) {
		return nil
	}
	digest, act, _ := strings.Cut(path, "/")
	digest = functions.DigestOfHex(digest)
	if functions.StoreAction(act) == functions.StoreVerify {
		return httpserver.StreamLines(req, res, func(ctx context.Context, report func(functions.StoreProgress)) error {
			return s.VerifyCheckpoint(ctx, digest, report)
		})
	}
	if err := s.ChangeCheckpoint(req.Context(), digest, functions.StoreAction(act)); err != nil {
		return err
	}
	enginehttp.WriteJSON(res, 200, struct{}{})
	return nil
}

func servePrefetch(s *nodestore.Store, req *httpserver.Request, res *httpserver.Response) error {
	var r functions.PrefetchRequest
	if !enginehttp.AllowMethod("POST", req, res) || !decode(req, res, &r) {
		return nil
	}
	return httpserver.StreamLines(req, res, func(ctx context.Context, report func(functions.StoreProgress)) error {
		return s.Prefetch(ctx, r, report)
	})
}

func (c *Client) Cached(ctx context.Context) (list []functions.CacheEntry, err error) {
	res, err := c.storeRequest(ctx, "GET", "/cache", nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return list, json.NewDecoder(res.Body).Decode(&list)
}

func (c *Client) ChangeCheckpoint(ctx context.Context, digest string, act functions.StoreAction) error {
	res, err := c.storeRequest(ctx, "POST", cachePath(digest, act), struct{}{})
	if err == nil {
		res.Body.Close()
	}
	return err
}

// VerifyCheckpoint verifies a checkpoint of the node by reading it again; see Store.VerifyCheckpoint.
func (c *Client) VerifyCheckpoint(ctx context.Context, digest string, report func(functions.StoreProgress)) error {
	return c.storeStream(ctx, cachePath(digest, functions.StoreVerify), struct{}{}, report)
}

func (c *Client) Prefetch(ctx context.Context, r functions.PrefetchRequest, report func(functions.StoreProgress)) error {
	return c.storeStream(ctx, "/prefetch", r, report)
}

func cachePath(digest string, act functions.StoreAction) string {
	return "/cache/" + url.PathEscape(functions.HexOfDigest(digest)) + "/" + url.PathEscape(string(act))
}

// storeRequest sends a request about the node's store; its errors are
// *functions.StoreError.
func (c *Client) storeRequest(ctx context.Context, method, path string, body any) (*http.Response, error) {
	res, err := sendJSON(ctx, c.http, method, c.url+path, body)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &functions.StoreError{Code: functions.CodeUnreachable,
			Message: fmt.Sprintf("the agent at %s does not answer: %v", c.url, err)}
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	code, message := readProblem(res)
	if code == "" {
		return nil, &functions.StoreError{Code: functions.CodeUnreachable, Message: fmt.Sprintf("the agent at %s answered %s", c.url, res.Status)}
	}
	return nil, &functions.StoreError{Code: code, Message: message}
}

// storeStream reads a stream of progress to its last line.
func (c *Client) storeStream(ctx context.Context, path string, body any, report func(functions.StoreProgress)) error {
	res, err := c.storeRequest(ctx, "POST", path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	in := bufio.NewScanner(res.Body)
	in.Buffer(nil, 1<<20)
	last := functions.StoreProgress{}
	for in.Scan() {
		if len(in.Bytes()) == 0 {
			continue
		}
		p := functions.StoreProgress{}
		if err := json.Unmarshal(in.Bytes(), &p); err != nil {
			return &functions.StoreError{Code: functions.CodeUnreachable, Message: "unexpected answer of the agent: " + err.Error()}
		}
		report(p)
		if last = p; p.Over() {
			return nil
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	last.State, last.Error = "failed",
		&functions.StoreError{Code: functions.CodeUnreachable, Message: "the agent at " + c.url + " broke off; what has arrived stays"}
	report(last)
	return nil
}
