package router

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/thaw-dev/thaw/bench/load"
	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
)

// Functions of the benchmark's platform.
const (
	siblingModel = "fake"  // a model that is up
	rulesRouter  = "rules" // decides by the rules alone
	scoreRouter  = "score" // needs the complexity score
	cacheRouter  = "kept"  // has an exact cache
)

// coldModel and hedgeRouter are the names of a cold model and of the Router that wants it.
// Each round has its own: a Router asks the platform for one model twice a minute at most.
func coldModel(i int) functions.Name {
	return functions.Name{Team: functions.DefaultTeam, Name: fmt.Sprintf("cold-%03d", i)}
}

func hedgeRouter(i int) string { return fmt.Sprintf("hedge-%03d", i) }

// document returns a definition file. They are YAML, which includes JSON.
func document(kind, name string, spec map[string]any) map[string]any {
	return map[string]any{"apiVersion": functions.APIVersion, "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec}
}

func modelDocument(name string, engine []string) map[string]any {
	return document("Model", name, map[string]any{
		"engine": "command", "args": append(append([]string{}, engine...), "--addr", "127.0.0.1:{port}"),
		"scale": map[string]any{"max": 1, "target": 1000, "idle": "1h"}, "resources": map[string]any{"memory": "32Mi"},
	})
}

// routerDocument returns a Router with the usual rules, whose targets are all to.
func routerDocument(name string, score bool, more map[string]any, to ...string) map[string]any {
	rules := []map[string]any{
		{"name": Extraction, "when": map[string]any{"structuredOutput": true}, "to": to},
		{"name": Code, "when": map[string]any{"code": true}, "to": to},
	}
	if score {
		rules = append(rules, map[string]any{"name": Reasoning, "when": map[string]any{"complexityAbove": 0.5}, "to": to})
	}
	spec := map[string]any{"rules": append(rules, map[string]any{"name": General, "to": to})}
	for key, value := range more {
		spec[key] = value
	}
	return document(functions.KindRouter, name, spec)
}

// startPlatform starts `thaw serve` with the benchmark's functions, of which cold are
// cold, creates a key, and starts the sibling.
func (o *Options) startPlatform(ctx context.Context, cold int) (p *served.Platform, key string, err error) {
	dir := filepath.Join(o.Dir, fmt.Sprintf("thaw-%d", cold))
	list := []map[string]any{
		modelDocument(siblingModel, o.Engine),
		routerDocument(rulesRouter, false, nil, siblingModel),
		routerDocument(scoreRouter, true, nil, siblingModel),
		routerDocument(cacheRouter, false, map[string]any{"cache": map[string]any{"exact": map[string]any{"ttl": "1h", "anyTemperature": true}}}, siblingModel),
	}
	for i := range cold {
		name := coldModel(i).Name
		list = append(list, modelDocument(name, o.Engine), routerDocument(hedgeRouter(i), false, map[string]any{"cold": functions.ColdHedge}, name, siblingModel))
	}
	files := filepath.Join(dir, "functions")
	if err := os.MkdirAll(files, 0o755); err != nil {
		return nil, "", err
	}
	for _, doc := range list {
		b, err := json.Marshal(doc)
		if err != nil {
			return nil, "", err
		}
		if err := os.WriteFile(filepath.Join(files, doc["metadata"].(map[string]any)["name"].(string)+".yaml"), b, 0o644); err != nil {
			return nil, "", err
		}
	}
	p, err = served.Start(ctx, served.Options{Exe: o.Thaw, Dir: dir, Functions: files})
	if err != nil {
		return nil, "", err
	}
	if key, err = p.NewKey(ctx, functions.DefaultTeam, "bench"); err == nil {
		_, err = sendRequest(ctx, p.Addr, load.Request{Model: siblingModel, Key: key})
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, p.Process.Tail())
		p.End()
		return nil, "", err
	}
	return p, key, nil
}

// sendRequest sends one request on a connection of its own and checks the status.
func sendRequest(ctx context.Context, addr string, q load.Request) (load.Answer, error) {
	k, err := load.Dial(ctx, addr)
	if err != nil {
		return load.Answer{}, err
	}
	defer func() { k.Close() }()
	a, err := k.Do(ctx, q.Bytes())
	if err == nil && a.Status != 200 {
		err = fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	}
	return a, err
}
