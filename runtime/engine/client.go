package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

var (
	ErrNoMetrics   = errors.New("the engine has no metrics")
	ErrUnsupported = errors.New("the engine has no such call")
)

// StatusError is an answer with a status other than 2xx.
type StatusError struct {
	Status int
	To     string // of a redirect
	Body   string // its first line, shortened
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("HTTP %d", e.Status)
	if e.To != "" {
		text += " to " + clipLine(e.To)
	}
	if e.Body != "" {
		text += ": " + e.Body
	}
	return text
}

// Busy reports that the engine works but refuses requests now.
func (e *StatusError) Busy() bool {
	return e.Status == http.StatusServiceUnavailable || e.Status == http.StatusTooManyRequests
}

// Denied reports that the engine refuses the credentials of a request.
func (e *StatusError) Denied() bool {
	return e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden
}

// Client calls one started engine. Its methods may be called from any goroutine.
type Client struct {
	url, health, name string
	key               string
	row               row
	http              *http.Client
	engine            functions.Engine
	lastAnswer        atomic.Pointer[string]     // see LastAnswer
	noAnswer          atomic.Pointer[string]     // why the last request had none
	probes            []tokenProbe               // the requests that it may answer; none: its health is enough
	probe             atomic.Pointer[tokenProbe] // the one that it answers
	busyAt            atomic.Int64               // when it was first busy instead, in unix nanoseconds; 0: it was not
}

func New(c Command) *Client {
	row, _ := engineRow(c.Engine)
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 2,
		// vLLM closes idle connections after 5 s.
		IdleConnTimeout:        4 * time.Second,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	asIs := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{url: c.URL, health: c.Health, name: c.Name, key: c.Key, engine: c.Engine, row: row, probes: probesOf(c),
		http: &http.Client{Transport: t, CheckRedirect: asIs}}
}

func (c *Client) Close() { c.http.CloseIdleConnections() }

func ConnectionRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// Metrics reads the engine's metrics; ErrNoMetrics if it answers without any.
func (c *Client) Metrics(ctx context.Context) (Metrics, error) {
	b, err := c.do(ctx, http.MethodGet, "/metrics", nil, 8<<20)
	if _, ok := errors.AsType[*StatusError](err); ok {
		return Metrics{}, ErrNoMetrics
	}
	if err != nil {
		return Metrics{}, err
	}
	m := parseMetrics(b)
	if !m.Load {
		return m, ErrNoMetrics
	}
	return m, nil
}

// LoadAdapter and UnloadAdapter are vLLM's runtime LoRA calls.
func (c *Client) LoadAdapter(ctx context.Context, name, path string) error {
	return c.adapterCall(ctx, "/v1/load_lora_adapter", map[string]string{"lora_name": name, "lora_path": path})
}

func (c *Client) UnloadAdapter(ctx context.Context, name string) error {
	return c.adapterCall(ctx, "/v1/unload_lora_adapter", map[string]string{"lora_name": name})
}

// AdapterLoaded reports whether an engine refused an adapter because it has it.
func AdapterLoaded(e *StatusError) bool { return strings.Contains(e.Body, "already been loaded") }

func (c *Client) adapterCall(ctx context.Context, path string, v any) error {
	if c.row.adapters == nil {
		return ErrUnsupported
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = c.do(ctx, http.MethodPost, path, b, 64<<10)
	return err
}

// SleepMode is how requests in flight end when an engine falls asleep.
type SleepMode string

const (
	SleepWait  SleepMode = "wait"  // they finish first
	SleepAbort SleepMode = "abort" // they end with finish_reason abort
)

// Sleep frees the GPU memory of a vLLM (level 1 keeps the weights in host memory, 2
// drops them) and returns when it sleeps; Wake undoes it. A sleeping vLLM answers
// 200 on /health and hangs on requests.
func (c *Client) Sleep(ctx context.Context, level int, mode SleepMode) error {
	return c.sleepCall(ctx, http.MethodPost, fmt.Sprintf("/sleep?level=%d&mode=%s", level, mode), nil)
}

// Wake ends a sleep of that level. After level 2 the weights are loaded again, between
// the allocation of the weights' memory and that of the KV cache.
func (c *Client) Wake(ctx context.Context, level int) error {
	if level < 2 {
		return c.sleepCall(ctx, http.MethodPost, "/wake_up", nil)
	}
	if err := c.sleepCall(ctx, http.MethodPost, "/wake_up?tags=weights", nil); err != nil {
		return err
	}
	if _, err := c.do(ctx, http.MethodPost, "/collective_rpc", []byte(`{"method":"reload_weights"}`), 64<<10); err != nil {
		return err
	}
	return c.sleepCall(ctx, http.MethodPost, "/wake_up?tags=kv_cache", nil)
}

func (c *Client) Sleeping(ctx context.Context) (bool, error) {
	var a struct {
		Sleeping bool `json:"is_sleeping"`
	}
	err := c.sleepCall(ctx, http.MethodGet, "/is_sleeping", &a)
	return a.Sleeping, err
}

// SleepLevel is the level of the engine's sleep, 0 if it is awake; for an adopted engine.
func (c *Client) SleepLevel(ctx context.Context) (level int, err error) {
	asleep, err := c.Sleeping(ctx)
	if err != nil || !asleep {
		return 0, err
	}
	b, err := c.do(ctx, http.MethodGet, "/metrics", nil, 8<<20)
	if err != nil {
		return 0, err
	}
	level = 1
	for line := range bytes.Lines(b) {
		if bytes.HasPrefix(line, []byte("vllm:engine_sleep_state{")) && bytes.Contains(line, []byte(`sleep_state="discard_all"`)) {
			if _, v, ok := parseSample(line); ok && v > 0 {
				level = 2
			}
		}
	}
	return level, nil
}

func (c *Client) sleepCall(ctx context.Context, method, path string, into any) error {
	if !c.row.sleep {
		return ErrUnsupported
	}
	b, err := c.do(ctx, method, path, nil, 64<<10)
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// Supports reports which of the optional calls an engine has.
func Supports(e functions.Engine) (adapters, sleep bool) {
	r, _ := engineRow(e)
	return r.adapters != nil, r.sleep
}

// do sends one request and reads at most limit bytes of its answer. A status other
// than 2xx is a StatusError.
func (c *Client) do(ctx context.Context, method, path string, body []byte, limit int64) ([]byte, error) {
	res, err := c.send(ctx, method, path, "application/json", body)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return readAnswer(res, path, limit)
}

// send sends one request; the caller closes the answer's body.
func (c *Client) send(ctx context.Context, method, path, contentType string, body []byte) (*http.Response, error) {
	var in io.Reader
	if body != nil {
		in = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, in)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", contentType)
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	res, err := c.http.Do(req)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err // without the internal address
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return res, nil
}

func readAnswer(res *http.Response, path string, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(res.Body, limit))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if res.StatusCode/100 != 2 {
		return b, &StatusError{Status: res.StatusCode, To: res.Header.Get("Location"), Body: errorMessage(b)}
	}
	return b, nil
}

// errorMessage is the message of an error body, on one line.
func errorMessage(b []byte) string {
	var a struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(b, &a) == nil {
		var o struct {
			Message string `json:"message"`
		}
		var s string
		switch {
		case json.Unmarshal(a.Error, &o) == nil && o.Message != "":
			return firstLine([]byte(o.Message))
		case json.Unmarshal(a.Error, &s) == nil && s != "":
			return firstLine([]byte(s))
		case a.Message != "":
			return firstLine([]byte(a.Message))
		}
	}
	return firstLine(b)
}

func firstLine(b []byte) string {
	s, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return clipLine(s)
}

// clipLine makes a line fit to be shown: bounded, valid, without control characters.
func clipLine(s string) string {
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s))
	return functions.Shorten(strings.ToValidUTF8(s, "?"), maxCause)
}
