package socket

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/bench/process"
	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
)

// Parts are the parts of the benchmark in order.
var Parts = []string{"intents", "idle", "typing", "submit", "cold"}

// Options of Run.
type Options struct {
	Parts  map[string]bool
	Thaw   string   // bin/thaw
	Engine []string // the benchmarks' engine without --addr
	Echo   []string // the echo server without --addr
	Dir    string   // for data and logs
	Texts  string   // folder of the labelled texts; "": made-up intents

	Intents     int           // made-up ones that the Router knows
	Decisions   int           // of each length of text
	Idle        []int         // idle sockets
	Rounds      int           // of typing and of submits
	Words       int           // typed in a round
	Submits     int           // of each kind in a round
	Starts      int           // cold starts of each kind
	Load, Typed time.Duration // of a cold engine, and for how long a text is typed

	Progress func(string)
}

// Run measures the selected parts.
func Run(ctx context.Context, o Options, r Result) (_ Result, err error) {
	for _, part := range Parts {
		if !o.Parts[part] {
			continue
		}
		o.Progress(part)
		switch part {
		case "intents":
			r.Decisions, r.Accuracy, r.Missing, err = measureIntents(ctx, &o)
		case "idle":
			r.Idle, err = measureIdle(ctx, &o)
		case "typing":
			r.Typing, err = measureTyping(ctx, &o)
		case "submit":
			r.Submits, err = measureSubmits(ctx, &o)
		case "cold":
			r.Cold, err = measureCold(ctx, &o)
		}
		if err != nil {
			return r, fmt.Errorf("%s: %w", part, err)
		}
	}
	r.checkGoals()
	return r, nil
}

// Functions of the benchmark's platform.
const (
	warmModel     = "fake"
	examplesFile  = "examples.jsonl"
	platformStart = 2 * time.Minute
)

// server is what sockets are opened at: thaw, or the echo server.
type server struct {
	name, addr, key string
	process         *process.Process
	platform        *served.Platform // nil: the echo server
	end             func()
}

// pong is what answers a ping.
func (s *server) pong() string {
	if s.platform == nil {
		return ping
	}
	return `{"type":"pong"}`
}

// startEcho starts the echo server.
func (o *Options) startEcho(ctx context.Context) (*server, error) {
	addr, err := process.FreeAddr()
	if err != nil {
		return nil, err
	}
	p, err := process.Begin("echo", o.Dir, nil, append(append([]string{}, o.Echo...), "--addr", addr)...)
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeoutCause(ctx, platformStart, fmt.Errorf("not within %s", platformStart))
	defer cancel()
	if err := p.WaitHTTP(wait, "http://"+addr+"/readyz"); err != nil {
		p.End(time.Second)
		return nil, err
	}
	return &server{name: EchoServer, addr: addr, process: p, end: func() { p.End(5 * time.Second) }}, nil
}

// startThaw starts `thaw serve` with a warm model, with cold ones that load for a while,
// and with the Router auto, which knows the intents: those of the first ones go to the
// cold models, the others to the warm one. It returns when the intents are recognised.
func (o *Options) startThaw(ctx context.Context, name string, intents []intent, cold int) (*server, error) {
	dir := filepath.Join(o.Dir, name)
	files := filepath.Join(dir, "functions")
	if err := os.MkdirAll(files, 0o755); err != nil {
		return nil, err
	}
	var rules, list []map[string]any
	var examples []byte
	documents := []map[string]any{o.modelDocument(warmModel, 0)}
	for i, in := range intents {
		list = append(list, map[string]any{"name": in.name, "examplesFrom": "./" + examplesFile})
		for _, text := range in.examples {
			examples = fmt.Appendf(examples, "{\"text\":%q,\"intent\":%q}\n", text, in.name)
		}
		to := warmModel
		if i < cold {
			to = coldModel(i).Name
			documents = append(documents, o.modelDocument(to, o.Load))
		}
		if i <= cold { // one of the warm model: intents are recognised where a rule asks
			rules = append(rules, map[string]any{"name": fmt.Sprintf("rule-%d", i), "when": map[string]any{"intent": in.name}, "to": []string{to}})
		}
	}
	rules = append(rules, map[string]any{"name": "general", "to": []string{warmModel}})
	documents = append(documents, document(functions.KindRouter, functions.AutoRouter,
		map[string]any{"rules": rules, "intents": map[string]any{"threshold": threshold, "list": list}}))
	if err := os.WriteFile(filepath.Join(files, examplesFile), examples, 0o644); err != nil {
		return nil, err
	}
	for _, doc := range documents {
		b, err := json.Marshal(doc)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(files, doc["metadata"].(map[string]any)["name"].(string)+".yaml"), b, 0o644); err != nil {
			return nil, err
		}
	}
	p, err := served.Start(ctx, served.Options{Exe: o.Thaw, Dir: dir, Functions: files, Args: []string{"--client-share", "100"}})
	if err != nil {
		return nil, err
	}
	s := &server{name: Thaw, addr: p.Addr, process: p.Process, platform: p, end: p.End}
	if s.key, err = p.NewKey(ctx, functions.DefaultTeam, "bench"); err == nil {
		err = s.awaitIntent(ctx, intents[len(intents)-1])
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, p.Process.Tail())
		p.End()
		return nil, err
	}
	return s, nil
}

// document returns a definition file. They are YAML, which includes JSON.
func document(kind, name string, spec map[string]any) map[string]any {
	return map[string]any{"apiVersion": functions.APIVersion, "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec}
}

func (o *Options) modelDocument(name string, load time.Duration) map[string]any {
	return document("Model", name, map[string]any{
		"engine": "command", "args": append(append([]string{}, o.Engine...), "--addr", "127.0.0.1:{port}", "--load", load.String()),
		"scale": map[string]any{"max": 1, "target": 1000, "idle": "1h"}, "resources": map[string]any{"memory": "32Mi"},
	})
}

func coldModel(i int) functions.Name {
	return functions.Name{Team: functions.DefaultTeam, Name: fmt.Sprintf("cold-%03d", i)}
}

// awaitIntent waits until the Router recognises an intent.
func (s *server) awaitIntent(ctx context.Context, in intent) error {
	ctx, cancel := context.WithTimeoutCause(ctx, platformStart, fmt.Errorf("the intent %s is not recognised", in.name))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var rec functions.RouteRecord
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.addr+"/predict?text="+url.QueryEscape(in.text),
			strings.NewReader(""))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+s.key)
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			if res.StatusCode == http.StatusOK {
				err = json.NewDecoder(res.Body).Decode(&rec)
			}
			res.Body.Close()
		}
		if err == nil && rec.Features.Intent == in.name {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
