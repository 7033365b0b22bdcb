package served

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/bench/process"
	"github.com/thaw-dev/thaw/functions"
)

// Timeouts for the platform.
const (
	startWithin = 30 * time.Second
	stopWithin  = 60 * time.Second
	endWithin   = 20 * time.Second
	pollEvery   = 5 * time.Millisecond
)

// Options of Start.
type Options struct {
	Exe       string   // bin/thaw
	Dir       string   // for data and logs, owned by the benchmark
	Functions string   // folder of model files
	Args      []string // more flags of `thaw serve`
	Env       []string
}

// Platform is a running `thaw serve`. Its methods may be called concurrently, except
// End.
type Platform struct {
	URL   string // http://host:port
	Addr  string // host:port
	Token string // admin token, or a key

	Process *process.Process // nil if the benchmark did not start it
	client  *http.Client
}

// At returns a platform that is already running.
func At(base, token string) (*Platform, error) {
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("%q is no server: want http://host:port", base)
	}
	addr := u.Host
	if u.Port() == "" {
		addr += ":80"
	}
	return &Platform{
		URL: "http://" + u.Host, Addr: addr, Token: token,
		client: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 4}},
	}, nil
}

// Start starts `thaw serve` on a free loopback port and waits until it accepts requests.
// The caller calls End.
func Start(ctx context.Context, o Options) (*Platform, error) {
	addr, err := process.FreeAddr()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(o.Dir, "data")
	argv := append([]string{o.Exe, "serve", "--addr", addr, "--data", data, "--functions", o.Functions}, o.Args...)
	proc, err := process.Begin("serve", o.Dir, o.Env, argv...)
	if err != nil {
		return nil, err
	}
	p, err := At("http://"+addr, "")
	if err == nil {
		p.Process = proc
		wait, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("not within %s", startWithin))
		defer cancel()
		err = proc.WaitHTTP(wait, p.URL+"/readyz")
	}
	if err == nil {
		p.Token, err = AdminToken(data)
	}
	if err != nil {
		proc.End(endWithin)
		return nil, err
	}
	return p, nil
}

// End ends a platform that Start started, and its engines.
func (p *Platform) End() {
	p.client.CloseIdleConnections()
	if p.Process != nil {
		p.Process.End(endWithin)
	}
}

// AdminToken reads the token that `thaw serve` made in its data folder.
func AdminToken(data string) (string, error) {
	b, err := os.ReadFile(filepath.Join(data, "admin-token"))
	if err != nil {
		return "", fmt.Errorf("admin token: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Replicas returns the replicas of a function that have not ended.
func (p *Platform) Replicas(ctx context.Context, of functions.Name) ([]functions.Replica, error) {
	var list struct {
		Items []functions.Replica `json:"items"`
	}
	if err := p.call(ctx, http.MethodGet, "/api/v1/replicas", nil, &list); err != nil {
		return nil, err
	}
	var out []functions.Replica
	for _, r := range list.Items {
		n, err := functions.ParseName(r.Function, functions.DefaultTeam)
		if err == nil && n.WithoutAdapter() == of.WithoutAdapter() && !r.State.Over() {
			out = append(out, r)
		}
	}
	return out, nil
}

// Nodes waits until n nodes are registered.
func (p *Platform) Nodes(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("there are no %d nodes after %s", n, startWithin))
	defer cancel()
	return p.until(ctx, func() (bool, error) {
		var list struct {
			Items []json.RawMessage `json:"items"`
		}
		err := p.call(ctx, http.MethodGet, "/api/v1/nodes", nil, &list)
		return len(list.Items) >= n, err
	})
}

// HasWarm reports whether a node of the platform has a warm interpreter ready.
func (p *Platform) HasWarm(ctx context.Context) (bool, error) {
	var list struct {
		Items []struct {
			Warm []functions.WarmParent `json:"warm"`
		} `json:"items"`
	}
	if err := p.call(ctx, http.MethodGet, "/api/v1/nodes", nil, &list); err != nil {
		return false, err
	}
	for _, n := range list.Items {
		for _, w := range n.Warm {
			if w.State == "ready" {
				return true, nil
			}
		}
	}
	return false, nil
}

// Stop scales a function to zero and returns when no replica is left.
func (p *Platform) Stop(ctx context.Context, of functions.Name) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopWithin, fmt.Errorf("%s still has replicas after %s", of, stopWithin))
	defer cancel()
	if err := p.call(ctx, http.MethodPost, "/api/v1/functions/"+of.Team+"/"+of.Name+"/stop", nil, nil); err != nil {
		return err
	}
	return p.until(ctx, func() (bool, error) {
		rs, err := p.Replicas(ctx, of)
		return len(rs) == 0, err
	})
}

// Events returns the events after number since, oldest first.
func (p *Platform) Events(ctx context.Context, since uint64) ([]functions.Event, error) {
	var list struct {
		Items []functions.Event `json:"items"`
	}
	err := p.call(ctx, http.MethodGet, fmt.Sprintf("/api/v1/events?since=%d", since), nil, &list)
	return list.Items, err
}

// Ready waits until a function has a READY replica.
func (p *Platform) Ready(ctx context.Context, of functions.Name) (functions.Replica, error) {
	var ready functions.Replica
	err := p.until(ctx, func() (bool, error) {
		rs, err := p.Replicas(ctx, of)
		for _, r := range rs {
			if r.State == functions.Ready {
				ready = r
				return true, nil
			}
		}
		return false, err
	})
	return ready, err
}

// ColdStart returns the timeline of a cold start, by its own id or a request's, once it
// has the phase first_token; after a second, without it.
func (p *Platform) ColdStart(ctx context.Context, id string) (functions.Timeline, error) {
	var t functions.Timeline
	deadline := time.Now().Add(time.Second)
	err := p.until(ctx, func() (bool, error) {
		t = functions.Timeline{}
		if err := p.call(ctx, http.MethodGet, "/api/v1/coldstarts/"+url.PathEscape(id), nil, &t); err != nil {
			return false, err
		}
		for _, s := range t.Phases {
			if s.Phase == functions.PhaseFirstToken {
				return true, nil
			}
		}
		return time.Now().After(deadline), nil
	})
	return t, err
}

var secret = regexp.MustCompile(`sk-thaw-[A-Za-z0-9_-]+`)

// NewKey creates a key of a team.
func (p *Platform) NewKey(ctx context.Context, team, name string) (string, error) {
	body := map[string]any{"team": team, "name": name}
	var answer json.RawMessage
	if err := p.call(ctx, http.MethodPost, "/api/v1/keys", body, &answer); err != nil {
		return "", err
	}
	key := secret.Find(answer)
	if key == nil {
		return "", fmt.Errorf("POST /api/v1/keys answered no key")
	}
	return string(key), nil
}

// Stats reads the counters of a replica's engine, which must be the fake one.
func (p *Platform) Stats(ctx context.Context, r functions.Replica, into any) error {
	return p.get(ctx, r.Endpoint+"/stats", into)
}

func (p *Platform) until(ctx context.Context, ok func() (bool, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		done, err := ok()
		if done || (err != nil && ctx.Err() == nil) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (p *Platform) get(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	return p.do(req, into)
}

func (p *Platform) call(ctx context.Context, method, path string, body, into any) error {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, p.URL+path, r)
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if p.Token != "" {
		req.Header.Set("Authorization", "Bearer "+p.Token)
	}
	return p.do(req, into)
}

func (p *Platform) do(req *http.Request, into any) error {
	res, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %.300s", req.Method, req.URL.Path, res.Status, b)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s %s: %w", req.Method, req.URL.Path, err)
	}
	return nil
}

// JoinToken makes a join token for an agent, and returns where it joins and the token's file,
// in dir.
func (p *Platform) JoinToken(ctx context.Context, dir string) (server, file string, err error) {
	var made struct{ Server, Token string }
	if err := p.call(ctx, http.MethodPost, "/api/v1/agents/tokens", map[string]string{}, &made); err != nil {
		return "", "", err
	}
	file = filepath.Join(dir, "join-token")
	return made.Server, file, os.WriteFile(file, []byte(made.Token), 0o600)
}
