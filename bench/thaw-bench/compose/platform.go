package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/bench/load"
	"github.com/thaw-dev/thaw/bench/process"
	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
)

// members are the names of the models that take part in a measurement; the coordinator is
// the one behind them.
var members = []string{"m1", "m2", "m3", "m4", "m5"}

const (
	coordinator = "judge"
	panel       = "panel" // the Composition
	chat        = "chat"  // with a number: a model of interactive requests
)

func fullName(name string) functions.Name {
	return functions.Name{Team: functions.DefaultTeam, Name: name}
}

// document returns a definition file. They are YAML, which includes JSON.
func document(kind, name string, spec map[string]any) map[string]any {
	return map[string]any{"apiVersion": functions.APIVersion, "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec}
}

// modelDocument returns a model with the benchmark's engine, which takes loads to load,
// and is stopped after idle.
func (o *Options) modelDocument(name string, gpus int, loads, idle time.Duration) map[string]any {
	args := append(slices.Clone(o.Engine), "--addr", "127.0.0.1:{port}", "--load", loads.String())
	return document(functions.KindModel, name, map[string]any{
		"engine": "command", "args": args, "scale": map[string]any{"max": 1, "target": 1000, "idle": idle.String()},
		"resources": map[string]any{"gpus": gpus, "memory": "16Mi"}, "queue": map[string]any{"wait": "30m"},
	})
}

func compositionDocument(pattern functions.Pattern, of []string, more map[string]any) map[string]any {
	spec := map[string]any{"pattern": pattern, "members": of, "coordinator": coordinator, "show": functions.ShowNone}
	for key, value := range more {
		spec[key] = value
	}
	return document(functions.KindComposition, panel, spec)
}

// platform is `thaw serve` with a key of the team.
type platform struct {
	*served.Platform
	key string
}

// start starts `thaw serve` with these functions and a number of GPUs, which need not exist.
func (o *Options) start(ctx context.Context, part string, gpus int, documents ...map[string]any) (*platform, error) {
	dir := filepath.Join(o.Dir, part)
	files := filepath.Join(dir, "functions")
	if err := os.MkdirAll(files, 0o755); err != nil {
		return nil, err
	}
	for i, doc := range documents {
		b, err := json.Marshal(doc)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(files, strconv.Itoa(i)+".yaml"), b, 0o644); err != nil {
			return nil, err
		}
	}
	args := []string{"--gpus", strconv.Itoa(gpus), "--memory", "1Gi", "--warm", "off"}
	if gpus > 0 {
		args = append(args, "--gpu-memory", "1Gi")
	}
	p, err := served.Start(ctx, served.Options{Exe: o.Thaw, Dir: dir, Functions: files, Args: args})
	if err != nil {
		return nil, err
	}
	key, err := p.NewKey(ctx, functions.DefaultTeam, "bench")
	if err != nil {
		err = fmt.Errorf("%w: %s", err, p.Process.Tail())
		p.End()
		return nil, err
	}
	return &platform{p, key}, nil
}

// request is the request of a prompt as bytes.
func (p *platform) request(model, prompt string, stream bool) []byte {
	return load.Request{Model: model, Key: p.key, Prompt: prompt, Stream: stream, Size: systemBytes}.Bytes()
}

// ask sends a request on a connection of its own, and returns when its first token came and
// its answer ended, after it was sent.
func (p *platform) ask(ctx context.Context, model, prompt string, stream bool) (first, whole time.Duration, err error) {
	k, err := load.Dial(ctx, p.Addr)
	if err != nil {
		return 0, 0, err
	}
	defer func() { k.Close() }()
	sent := time.Now()
	a, err := k.Do(ctx, p.request(model, prompt, stream))
	if err == nil {
		err = checkAnswer(a)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", model, err)
	}
	return a.First.Sub(sent), a.End.Sub(sent), nil
}

// checkAnswer requires an answer with text. A stream must have its end.
func checkAnswer(a load.Answer) error {
	text := string(a.Body)
	whole := strings.HasSuffix(text, "}") || strings.HasSuffix(text, "data: [DONE]\n\n")
	if a.Status != 200 || !whole || a.First.IsZero() || strings.Contains(text, `"error":{`) {
		return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	}
	return nil
}

// loads are the starts of models.
type loads struct {
	Starts  map[string]int `json:"starts"`      // by model
	Seconds float64        `json:"gpu_seconds"` // from the start order to READY, or the end
	began   map[string]functions.Event
}

// add counts an event of one of the models, by short names.
func (l *loads) add(e functions.Event, models []string) {
	name := e.Function[strings.IndexByte(e.Function, '/')+1:]
	if !slices.Contains(models, name) {
		return
	}
	switch e.Kind {
	case "start":
		if l.Starts == nil {
			l.Starts, l.began = map[string]int{}, map[string]functions.Event{}
		}
		l.Starts[name]++
		l.began[e.Replica] = e
	case "ready", "ended":
		if b, ok := l.began[e.Replica]; ok {
			l.Seconds += e.At.Sub(b.At).Seconds()
			delete(l.began, e.Replica)
		}
	}
}

// all is the number of starts.
func (l *loads) all() (n int) {
	for _, x := range l.Starts {
		n += x
	}
	return n
}

// loads counts the starts of models.
func (p *platform) loads(ctx context.Context, models []string) (l loads, err error) {
	list, err := p.Events(ctx, 0)
	if err != nil {
		return l, err
	}
	for _, e := range list {
		l.add(e, models)
	}
	return l, nil
}

// cpu is the processor time of the platform so far.
func (p *platform) cpu() (time.Duration, error) { return process.CPU(p.Process.PID) }
