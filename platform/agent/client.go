package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Client commands an agent on another host, or in another process of this one. It is an
// orchestrator.Node, orchestrator.Verifier, orchestrator.Sleeper and
// orchestrator.AdapterLoader.
type Client struct {
	url        string
	http       *http.Client
	slowClient *http.Client // without a bound on the answer's first byte
}

// NewClient returns a client of the agent at url. It dials nothing. secure shows the server's
// certificate and accepts that of the agent alone; nil is plain HTTP, for tests.
func NewClient(url string, secure *tls.Config) *Client {
	client := func(answers time.Duration) *http.Client {
		return &http.Client{
			Transport: &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second, ResponseHeaderTimeout: answers,
				TLSClientConfig: secure},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return &Client{url: strings.TrimRight(url, "/"), http: client(20 * time.Second), slowClient: client(0)}
}

func (c *Client) URL() string { return c.url }

func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.slowClient.CloseIdleConnections()
}

func (c *Client) Load(ctx context.Context, req functions.LoadRequest) (reply functions.LoadReply, err error) {
	err = c.post(ctx, c.http, "/load_model", req, &reply)
	return reply, err
}

func (c *Client) Unload(ctx context.Context, req functions.UnloadRequest) error {
	return c.post(ctx, c.http, "/unload_model", req, nil)
}

// Sleep sends a replica to sleep, or with level 0 wakes it.
func (c *Client) Sleep(ctx context.Context, req functions.SleepRequest) error {
	return c.post(ctx, c.http, "/sleep_model", req, nil)
}

// LoadAdapter has a replica load an adapter, and returns when that is done; ctx bounds it.
func (c *Client) LoadAdapter(ctx context.Context, req functions.AdapterRequest) error {
	return c.post(ctx, c.slowClient, "/load_adapter", req, nil)
}

// Verify has a replica check its engine.
func (c *Client) Verify(ctx context.Context, id, problem string) error {
	return c.post(ctx, c.http, "/replicas/"+url.PathEscape(id)+"/verify", problem, nil)
}

func (c *Client) Logs(ctx context.Context, id string, lines int, follow bool) (io.ReadCloser, error) {
	q := "?tail=" + strconv.Itoa(lines) + "&follow=" + strconv.FormatBool(follow)
	res, err := sendJSON(ctx, c.http, "GET", c.url+"/replicas/"+url.PathEscape(id)+"/logs"+q, nil)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer res.Body.Close()
	_, description := readProblem(res)
	if res.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("%w: %s", functions.ErrNotFound, strings.TrimPrefix(description, functions.ErrNotFound.Error()+": "))
	}
	return nil, fmt.Errorf("agent %s: %d %s", c.url, res.StatusCode, description)
}

// sendJSON sends body (nil: nothing) as JSON.
func sendJSON(ctx context.Context, client *http.Client, method, url string, body any) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, r)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return client.Do(req)
}

const maxReply = 16 << 20

func (c *Client) post(ctx context.Context, client *http.Client, path string, in, out any) error {
	res, err := sendJSON(ctx, client, "POST", c.url+path, in)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode == http.StatusConflict:
		return fmt.Errorf("agent %s: %w", c.url, functions.ErrStaleEpoch)
	case res.StatusCode/100 != 2:
		code, message := readProblem(res)
		switch {
		case strings.HasPrefix(code, "adapter_"):
			return &functions.AdapterError{Code: code, Message: message}
		case code == codeNoReplica:
			return fmt.Errorf("agent %s: %w: %s", c.url, ErrNoReplica, message)
		case res.StatusCode == http.StatusBadRequest:
			return fmt.Errorf("agent %s: %w: %s", c.url, ErrBadRequest, message)
		}
		return fmt.Errorf("agent %s: %d %s", c.url, res.StatusCode, message)
	case out == nil:
		io.Copy(io.Discard, io.LimitReader(res.Body, maxReply))
		return nil
	}
	return json.NewDecoder(io.LimitReader(res.Body, maxReply)).Decode(out)
}

// readProblem reads an error answer: its code, "" if it has none, and its message.
func readProblem(res *http.Response) (code, description string) {
	b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<16))
	var p problem
	if json.Unmarshal(b, &p) == nil && p.Error.Message != "" {
		return p.Error.Code, p.Error.Message
	}
	return "", http.StatusText(res.StatusCode)
}
