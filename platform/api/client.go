package api

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Client speaks to a server's control API and, for a chat, to /v1. It may be
// used concurrently.
type Client struct {
	server string
	key    string
	guess  bool // see GuessKey
	http   *http.Client
}

// StatusError is a server's answer other than success.
type StatusError struct {
	Status  int
	Code    string
	Message string
}

func (e *StatusError) Error() string { return e.Message }

// ErrorOf is the error in the member "error" of an answer, nil if there is none. Engines' codes
// may be numbers, and the whole error a text.
func ErrorOf(status int, member json.RawMessage) *StatusError {
	e := &StatusError{Status: status}
	var object struct {
		Message string
		Code    any
	}
	switch {
	case len(member) == 0 || string(member) == "null":
		return nil
	case json.Unmarshal(member, &e.Message) != nil && json.Unmarshal(member, &object) == nil:
		e.Message = object.Message
		e.Code, _ = object.Code.(string)
	}
	return e
}

// bounds of what a client waits for and keeps.
const (
	dialTimeout = 5 * time.Second
	headTimeout = 30 * time.Second
	maxAnswer   = 64 << 20
	maxError    = 1 << 20
	maxLine     = 8 << 20
)

// NewClient makes a client of the server at a URL such as
// http://127.0.0.1:8080; key may be empty. It connects to nothing yet.
func NewClient(server, key string) (*Client, error) {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	server = strings.TrimSuffix(strings.TrimRight(server, "/"), "/v1") // as clients of the OpenAI API name it
	u, err := url.Parse(server)
	if err == nil && (u.User != nil || u.RawQuery != "" || u.Fragment != "") {
		return nil, errors.New("the address of a server has no user, query or fragment; a key is given by --key or THAW_KEY")
	}
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is no server: want such as http://127.0.0.1:8080 or http://[::1]:8080", functions.Clip(server))
	}
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: headTimeout,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConnsPerHost:   4,
	}
	// A key must not follow a redirect to somewhere else.
	h := &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &Client{server: strings.TrimRight(u.String(), "/"), key: key, http: h}, nil
}

// NewClientOver makes a client whose requests go another way than to a server's own
// address: server is what it is called.
func NewClientOver(transport http.RoundTripper, server, key string) (*Client, error) {
	c, err := NewClient(server, key)
	if err != nil {
		return nil, err
	}
	c.http.Transport = transport
	return c, nil
}

func (c *Client) Server() string { return c.server }

func (c *Client) Close() { c.http.CloseIdleConnections() }

// GuessKey says that the key was found in a file, so that it may be of another server: a request that
// the server refuses with it is sent once without it. It is called before any request.
func (c *Client) GuessKey() { c.guess = true }

// Do sends one request as it is and gives the answer if it is a success, else a
// *StatusError. The caller closes the answer's body.
func (c *Client) Do(ctx context.Context, method, path string, header http.Header, body []byte) (*http.Response, error) {
	res, err := c.do(ctx, method, path, header, body, c.key)
	if s, ok := errors.AsType[*StatusError](err); ok && s.Status == 401 && c.guess && c.key != "" {
		if res, err := c.do(ctx, method, path, header, body, ""); err == nil {
			return res, nil
		}
	}
	return res, err
}

func (c *Client) do(ctx context.Context, method, path string, header http.Header, body []byte, key string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.server+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if header != nil {
		req.Header = header.Clone()
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(res.Body, maxError))
	var wire struct {
		Error json.RawMessage `json:"error"`
	}
	_ = json.Unmarshal(b, &wire)
	e := ErrorOf(res.StatusCode, wire.Error)
	if e == nil || e.Message == "" {
		what := res.Status
		if to := res.Header.Get("Location"); to != "" {
			what += " (go to " + functions.Clip(to) + ")"
		}
		e = &StatusError{Status: res.StatusCode, Message: c.NotThaw(what).Error()}
		if t, ok := c.http.Transport.(*http.Transport); ok && t.Proxy != nil {
			if proxy, err := t.Proxy(req); err == nil && proxy != nil {
				e.Message += " It was asked through the proxy " + proxy.Host + ", which HTTP_PROXY or HTTPS_PROXY names."
			}
		}
	}
	if u, err := url.Parse(c.server); err == nil && u.Host != "" && u.Path != "" && e.Code == string(openai.UnknownEndpoint) {
		e.Message += " The path " + u.Path + " stands in the server's address, where the verbs want none: " +
			strings.TrimSuffix(c.server, u.Path) + "."
	}
	return nil, e
}

// NotThaw is the error for an answer that no server of thaw sends.
func (c *Client) NotThaw(what string) error {
	return fmt.Errorf("%s answered %s, and not as thaw does: is it the address of a thaw server?", c.server, what)
}

// Request sends in (nil: nothing) as JSON and returns the answer.
func Request[T any](ctx context.Context, c *Client, method, path string, in any) (out T, err error) {
	res, err := c.send(ctx, method, path, in)
	return answer[T](c, res, err)
}

// send sends in (nil: nothing) as JSON.
func (c *Client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	if in == nil {
		return c.Do(ctx, method, path, nil, nil)
	}
	b, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	return c.Do(ctx, method, path, jsonBody, b)
}

// jsonBody is the head of a request whose body is JSON.
var jsonBody = http.Header{"Content-Type": {"application/json"}}

// answer reads the whole answer of a request, unless it failed.
func answer[T any](c *Client, res *http.Response, failed error) (out T, err error) {
	if failed != nil {
		return out, failed
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return out, err
	}
	if json.Unmarshal(b, &out) != nil {
		err = c.NotThaw(fmt.Sprintf("with %q", functions.Clip(string(b))))
	}
	return out, err
}

// Delete removes an item of the list at path, such as /api/v1/keys.
func (c *Client) Delete(ctx context.Context, path, id string) error {
	res, err := c.Do(ctx, "DELETE", path+"/"+url.PathEscape(id), nil, nil)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// GetItems returns the items of the list at path, such as /api/v1/nodes.
func GetItems[T any](ctx context.Context, c *Client, path string) ([]T, error) {
	l, err := Request[List[T]](ctx, c, "GET", path, nil)
	return l.Items, err
}

func (c *Client) Functions(ctx context.Context) ([]Function, error) {
	return GetItems[Function](ctx, c, "/api/v1/functions")
}

func (c *Client) Replicas(ctx context.Context) ([]functions.Replica, error) {
	return GetItems[functions.Replica](ctx, c, "/api/v1/replicas")
}

// Events are those of one function (TEAM/NAME; "": all) and of one kind ("": any), oldest first.
func (c *Client) Events(ctx context.Context, function, kind string) ([]functions.Event, error) {
	return GetItems[functions.Event](ctx, c, "/api/v1/events?"+url.Values{"function": {function}, "kind": {kind}}.Encode())
}

// Explain returns the reasons of a function's state; kind is one of ExplainKinds.
func (c *Client) Explain(ctx context.Context, kind string, name functions.Name) (functions.Explanation, error) {
	path := "/api/v1/explain/" + url.PathEscape(kind) + "/" + url.PathEscape(name.Team) + "/" + url.PathEscape(name.Name)
	return Request[functions.Explanation](ctx, c, "GET", path, nil)
}

// FunctionPath is the path of a function in the API.
func FunctionPath(name functions.Name) string {
	return "/api/v1/functions/" + url.PathEscape(name.Team) + "/" + url.PathEscape(name.Name)
}

func (c *Client) Function(ctx context.Context, name functions.Name) (Function, error) {
	return Request[Function](ctx, c, "GET", FunctionPath(name), nil)
}

// Deploy keeps a file of a function on the server. For a dry run the functions beside it
// count as deployed.
func (c *Client) Deploy(ctx context.Context, name functions.Name, file []byte, dryRun bool, beside ...functions.Name) (DeployReply, error) {
	path := FunctionPath(name)
	if dryRun {
		path += "?dryRun"
		for i, n := range beside[max(0, len(beside)-maxBeside):] {
			path += map[bool]string{true: "&beside=", false: ","}[i == 0] + n.String()
		}
	}
	res, err := c.Do(ctx, "PUT", path, http.Header{"Content-Type": {"application/yaml"}}, file)
	return answer[DeployReply](c, res, err)
}

// Wake asks for a replica, to stay for lease (0: for its idle time, at
// least a minute).
func (c *Client) Wake(ctx context.Context, name functions.Name, lease time.Duration) (WakeReply, error) {
	return Request[WakeReply](ctx, c, "POST", FunctionPath(name)+"/wake",
		WakeRequest{Lease: functions.Duration(lease), Adapter: name.Adapter})
}

// Route is what a Router would send a request to; router and path may be "". body is the
// request's, in JSON.
func (c *Client) Route(ctx context.Context, router, path string, body []byte) (functions.RouteRecord, error) {
	path = "/api/v1/route?" + url.Values{"router": {router}, "path": {path}}.Encode()
	res, err := c.Do(ctx, "POST", path, jsonBody, body)
	return answer[functions.RouteRecord](c, res, err)
}

// ColdStart is one, by its id or a request's.
func (c *Client) ColdStart(ctx context.Context, id string) (ColdStart, error) {
	return Request[ColdStart](ctx, c, "GET", "/api/v1/coldstarts/"+url.PathEscape(id), nil)
}

func onNode(path, node string) string {
	return path + "?node=" + url.QueryEscape(node)
}

func cachePath(digest string) string {
	return "/api/v1/cache/" + url.PathEscape(functions.HexOfDigest(digest))
}

// ChangeCheckpoint removes, pins or unpins a checkpoint on a node, or on all that hold it.
func (c *Client) ChangeCheckpoint(ctx context.Context, node, digest string, act functions.StoreAction) (StoreReply, error) {
	if act == functions.StoreRemove {
		return Request[StoreReply](ctx, c, "DELETE", onNode(cachePath(digest), node), nil)
	}
	return Request[StoreReply](ctx, c, "POST", onNode(cachePath(digest)+"/"+string(act), node), nil)
}

// VerifyCheckpoint verifies a checkpoint on a node, or on all that hold it, and reports the
// progress to tell.
func (c *Client) VerifyCheckpoint(ctx context.Context, node, digest string, report func(functions.StoreProgress)) error {
	return c.progress(ctx, onNode(cachePath(digest)+"/verify", node), nil, report)
}

// Prefetch downloads weights to a node and reports the progress to tell, up to the
// last line. The end of ctx cancels it.
func (c *Client) Prefetch(ctx context.Context, r PrefetchRequest, report func(functions.StoreProgress)) error {
	return c.progress(ctx, "/api/v1/prefetch", r, report)
}

// progress passes every line of a stream to tell; ErrLost if the stream broke off.
func (c *Client) progress(ctx context.Context, path string, in any, report func(functions.StoreProgress)) error {
	res, err := c.send(ctx, "POST", path, in)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	over := false
	err = readLines(ctx, res.Body, func(p functions.StoreProgress) bool {
		over = p.Over()
		report(p)
		return true
	})
	if over && errors.Is(err, ErrLost) {
		return nil
	}
	return err
}

// readLines passes every line of a stream of JSON to each until that returns false; ErrLost if
// the stream ended before.
func readLines[T any](ctx context.Context, r io.Reader, each func(T) bool) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			return fmt.Errorf("the answer is not what thaw says: %w", err)
		}
		if !each(v) {
			return nil
		}
	}
	return cmp.Or(ctx.Err(), lines.Err(), ErrLost)
}

// Logs of a replica from the last tail lines on. The caller closes it.
func (c *Client) Logs(ctx context.Context, replica string, tail int, follow bool) (io.ReadCloser, error) {
	path := "/api/v1/replicas/" + url.PathEscape(replica) + "/logs?tail=" + strconv.Itoa(tail)
	if follow {
		path += "&follow"
	}
	res, err := c.Do(ctx, "GET", path, nil, nil)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Ready returns whether the server accepts requests, and the reasons if not.
func (c *Client) Ready(ctx context.Context) (Readiness, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", c.server+"/readyz", nil)
	if err != nil {
		return Readiness{}, err
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return Readiness{}, err
	}
	if res.StatusCode != 200 && res.StatusCode != 503 {
		res.Body.Close()
		return Readiness{}, &StatusError{Status: res.StatusCode, Message: "the server answered " + res.Status + " to /readyz, so it is not thaw"}
	}
	return answer[Readiness](c, res, nil)
}

// ErrLost ends a watch whose server went away, or took the right to it away.
var ErrLost = errors.New("the server ended the watch")

// Watch calls tell for every change of the list at path (such as
// /api/v1/functions) until ctx ends, tell returns false or the server closes the stream.
func Watch[T any](ctx context.Context, c *Client, path string, onChange func(Change[T]) bool) error {
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	res, err := c.Do(ctx, "GET", path+sep+"watch", nil, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return readLines(ctx, res.Body, onChange)
}

// Skew is how far the server's clock is ahead of ours, to the second; negative
// where it is behind.
func (c *Client) Skew(ctx context.Context, now func() time.Time) (time.Duration, error) {
	res, err := c.Do(ctx, "GET", "/healthz", nil, nil)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	at, err := http.ParseTime(res.Header.Get("Date"))
	if err != nil {
		return 0, errors.New("the server does not say what time it is")
	}
	return at.Sub(now()).Round(time.Second), nil
}
