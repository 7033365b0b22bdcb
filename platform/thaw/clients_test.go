package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit"
)

// These tests run unchanged OpenAI clients against a real `thaw serve`: the cases of
// deploy/clients/README.md. The official Go client runs in this process; the others are
// found by variables that .ci/components prints. Without them they are skipped, or fail if
// THAW_REQUIRE=all.

var tinyFunction = functions.Name{Team: functions.DefaultTeam, Name: "tiny"}

// fakeEngineOf is the function of a client that the fake engine serves. Each client kills an
// engine and has its own function: an engine that crashes once is restarted at once,
// repeated crashes cause a backoff.
func fakeEngineOf(client string) functions.Name {
	return functions.Name{Team: functions.DefaultTeam, Name: "fake-" + client}
}

// seen is what a client reported for one case.
type seen struct {
	Text      string `json:"text"`
	Chunks    int    `json:"chunks"`
	Finish    string `json:"finish"`
	Tool      string `json:"tool"`
	Arguments string `json:"arguments"`
	Usage     int64  `json:"usage"`
	Plain     *seen  `json:"plain"`    // for the case tools
	Streamed  *seen  `json:"streamed"` // for the case tools
	Error     *shown `json:"error"`
	Failed    string `json:"failed"` // the script's own failure

	Frames []socketFrame `json:"frames"` // of a socket
}

// shown is an error as the client reports it.
type shown struct {
	Class     string `json:"class"`
	Known     bool   `json:"known"` // it is the client's own type of API error
	Status    int    `json:"status"`
	Code      string `json:"code"`
	Param     string `json:"param"`
	Type      string `json:"type"`
	Message   string `json:"message"`
	RequestID string `json:"request_id"`
}

// official runs a case with a client. The error is a failure of the client's program, not
// one that the case expects.
type official func(ctx context.Context, name string) (seen, error)

// kind is one client of the matrix.
type kind struct {
	name     string
	variable string // names its folder; "" for the client in this process
	program  string // in that folder, or on PATH
	script   string // in deploy/clients; "": the program has the cases
	pkg      string // package that the script loads
	args     string // of the program, before the script; $DIR is the folder
	words    bool   // it shows only an error's status and message
	texts    bool   // its script has no case with tools
	stays    bool   // it cannot cancel a stream
	batches  bool   // it has files and batches
	mute     bool   // of an error in a stream it shows only that the stream broke
}

var kinds = []kind{
	{name: "go", batches: true},
	{name: "node-oldest", variable: "THAW_NODE_CLIENTS", program: "node", script: "node/cases.mjs", pkg: "openai-oldest", batches: true},
	{name: "node-newest", variable: "THAW_NODE_CLIENTS", program: "node", script: "node/cases.mjs", pkg: "openai-newest", batches: true},
	{name: "python-oldest", variable: "THAW_PYTHON_CLIENTS_OLDEST", program: "bin/python", script: "python/cases.py", batches: true},
	{name: "python-newest", variable: "THAW_PYTHON_CLIENTS_NEWEST", program: "bin/python", script: "python/cases.py", batches: true},
	{name: "ai", variable: "THAW_NODE_CLIENTS", program: "node", script: "node/cases_ai.mjs"},
	{name: "langchain", variable: "THAW_PYTHON_LANGCHAIN", program: "bin/python", script: "python/cases_langchain.py"},
	{name: "litellm", variable: "THAW_PYTHON_LITELLM", program: "bin/python", script: "python/cases_litellm.py", words: true},
	{name: "llamaindex", variable: "THAW_PYTHON_LLAMAINDEX", program: "bin/python", script: "python/cases_llamaindex.py", texts: true, stays: true},
	{name: "httpx", variable: "THAW_PYTHON_LLAMAINDEX", program: "bin/python", script: "python/cases_httpx.py", texts: true},
	{name: "openai-go-1", variable: "THAW_GO_CLIENTS", program: "./clients", pkg: "openai-go", texts: true},
	{name: "go-openai", variable: "THAW_GO_CLIENTS", program: "./clients", pkg: "go-openai", words: true, texts: true},
	{name: "openai-java", variable: "THAW_JAVA_CLIENTS", program: "java", args: "-cp $DIR/lib/*:$DIR/classes", script: "Cases", texts: true},
	{name: "langchain4j", variable: "THAW_JAVA_CLIENTS", program: "java", args: "-cp $DIR/lib/*:$DIR/classes", script: "Cases", pkg: "langchain4j", words: true, texts: true, stays: true, mute: true},
}

// open starts the client until the end of the test. It requests model for cases with a
// real model, and fake for cases with the fake engine.
func (k kind) open(t *testing.T, base, key, model, fake string) official {
	t.Helper()
	if k.variable == "" {
		return goClient(base, key, model, fake)
	}
	where := os.Getenv(k.variable)
	if where == "" {
		testkit.Missing(t, k.variable, `is not set: eval "$(.ci/components)" sets it`)
	}
	program := k.program
	if strings.Contains(program, "/") {
		program = filepath.Join(where, program)
	}
	args := strings.Fields(strings.ReplaceAll(k.args, "$DIR", where))
	switch {
	case len(args) > 0:
		args = append(args, k.script)
	case k.script != "":
		args = []string{filepath.Join("..", "..", "deploy", "clients", k.script)}
	}
	return scriptClient(t, program, args,
		"THAW_BASE_URL="+base, "THAW_API_KEY="+key, "THAW_CLIENT="+k.pkg, "THAW_MODEL="+model, "THAW_FAKE="+fake)
}

func TestOfficialClients(t *testing.T) {
	p := serveClients(t)
	key, err := p.NewKey(t.Context(), functions.DefaultTeam, "clients")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			of := fakeEngineOf(k.name)
			clientCases(t, p, of, k, k.open(t, p.URL+"/v1", key, tinyFunction.Name, of.Name))
		})
	}
}

// TestSlowStart: all clients, with the timeouts that they come with, get the whole text of a
// model whose start takes longer than the pause before the first chunk without words (45 s).
func TestSlowStart(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	p := serveClients(t, "--ready-file", ready)
	slow := fakeEngineOf("slow")
	var clients []official
	for _, k := range kinds {
		clients = append(clients, k.open(t, p.URL+"/v1", "none", slow.Name, ""))
	}
	var wg sync.WaitGroup
	for i, k := range kinds {
		wg.Go(func() {
			if s, err := clients[i](t.Context(), "unknown_model"); err != nil || s.Error == nil { // its program runs
				t.Errorf("%s: %v %+v", k.name, err, s)
			}
		})
	}
	wg.Wait()
	for i, k := range kinds {
		wg.Go(func() {
			s, err := clients[i](t.Context(), "cold_stream")
			if err != nil || s.Error != nil || s.Finish != "stop" || strings.Count(s.Text, "w") != 64 {
				t.Errorf("%s: %v %+v %+v", k.name, err, s, s.Error)
			}
		})
	}
	if err := firstChunk(t, p.URL, slow); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// firstChunk reads the stream of a held request until a chunk and another comment have come.
func firstChunk(t *testing.T, base string, of functions.Name) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	body := strings.NewReader(fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":"hi"}]}`, of.Name))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for came := false; lines.Scan(); {
		if came && strings.HasPrefix(lines.Text(), ": thaw ") {
			return nil
		}
		came = came || strings.HasPrefix(lines.Text(), "data: ")
	}
	return fmt.Errorf("the stream ended without a chunk: %v", lines.Err())
}

// serveClients starts a platform with the embedded model and the fake engine. The
// arguments are those of the engine of the function fake-slow.
func serveClients(t *testing.T, slow ...string) *served.Platform {
	t.Helper()
	exe, err := os.Executable() // see TestMain
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	folder := filepath.Join(dir, "functions")
	if err := os.CopyFS(folder, os.DirFS(filepath.Join("..", "..", "functions", "shipped"))); err != nil {
		t.Fatal(err)
	}
	var models strings.Builder
	for _, k := range kinds {
		fmt.Fprintf(&models, "---\napiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: %s}\nspec:\n  engine: command\n  args: [%q, "+
			"bench-engine, --addr, \"127.0.0.1:{port}\"]\n", fakeEngineOf(k.name).Name, exe)
	}
	if len(slow) > 0 {
		fmt.Fprintf(&models, "---\napiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: %s}\nspec:\n  engine: command\n  args: [%q, "+
			"bench-engine, --addr, \"127.0.0.1:{port}\", %s]\n  scale: {target: 32}\n", fakeEngineOf("slow").Name, exe, strings.Join(slow, ", "))
	}
	if err := os.WriteFile(filepath.Join(folder, "fake.yaml"), []byte(models.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := served.Start(t.Context(), served.Options{Exe: exe, Dir: dir, Functions: folder})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.End()
		if t.Failed() {
			t.Logf("serve said:\n%s", p.Process.Tail())
		}
	})
	return p
}

func clientCases(t *testing.T, p *served.Platform, of functions.Name, k kind, client official) {
	do := func(t *testing.T, name string) seen {
		t.Helper()
		s, err := client(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	cold := func(t *testing.T) {
		t.Helper()
		if err := p.Stop(t.Context(), tinyFunction); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("cold_stream", func(t *testing.T) {
		cold(t)
		if s := do(t, "cold_stream"); s.Text == "" || s.Chunks < 1 || s.Usage == 0 || (s.Finish != "stop" && s.Finish != "length") {
			t.Errorf("%+v", s)
		}
	})
	t.Run("cold_plain", func(t *testing.T) {
		cold(t)
		if s := do(t, "cold_plain"); s.Text == "" || s.Usage == 0 || (s.Finish != "stop" && s.Finish != "length") {
			t.Errorf("%+v", s)
		}
	})
	t.Run("tools", func(t *testing.T) {
		if k.texts {
			return
		}
		s := do(t, "tools")
		for _, x := range []*seen{s.Plain, s.Streamed} {
			if x == nil || x.Tool != "weather" || x.Arguments != `{"city":"Köln"}` || x.Finish != "tool_calls" {
				t.Errorf("%+v", x)
			}
		}
		checkToolsReceived(t, p, of)
	})
	t.Run("unknown_model", func(t *testing.T) {
		e := do(t, "unknown_model").Error
		if e == nil || !e.Known || e.Status != http.StatusNotFound || !strings.Contains(e.Message, "tiny") {
			t.Fatalf("%+v", e)
		}
		if !k.words && (e.Code != "model_not_found" || e.Param != "model" || e.Type != "invalid_request_error" || e.RequestID == "") {
			t.Errorf("%+v", e)
		}
	})
	t.Run("dies", func(t *testing.T) {
		s := do(t, "dies")
		if e := s.Error; e == nil || !e.Known || !k.mute && !strings.Contains(e.Message, "died") || !k.words && e.Code != "engine_crashed" ||
			s.Chunks > 5 || s.Finish != "" {
			t.Errorf("%+v, error %+v", s, s.Error)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		if k.stays {
			return
		}
		if s := do(t, "cancel"); s.Chunks < 1 {
			t.Errorf("%+v", s)
		}
		checkDisconnectSeen(t, p, of)
	})
	t.Run("batch", func(t *testing.T) {
		if !k.batches {
			return
		}
		s := do(t, "batch")
		if s.Text == "" || s.Chunks != 3 || s.Finish != "completed" {
			t.Errorf("%+v", s)
		}
		if e := s.Error; e == nil || !e.Known || e.Status != http.StatusConflict || e.Code != "conflict" {
			t.Errorf("cancel: %+v", e)
		}
	})
}

// checkToolsReceived checks that the engine received the tools as the client sent them.
func checkToolsReceived(t *testing.T, p *served.Platform, of functions.Name) {
	t.Helper()
	r, err := p.Ready(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Get(r.Endpoint + "/last")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var got struct {
		Model    string
		Tools    any
		Choice   any `json:"tool_choice"`
		Parallel any `json:"parallel_tool_calls"`
		Stream   bool
	}
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	var want any
	b, err := os.ReadFile(filepath.Join("..", "..", "deploy", "clients", "tools.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	if got.Model != of.Name || got.Choice != "auto" || got.Parallel != false || !got.Stream || !reflect.DeepEqual(got.Tools, want) {
		t.Errorf("the engine got %+v", got)
	}
}

// checkDisconnectSeen checks that the engine saw the client disconnect and that no request is left.
func checkDisconnectSeen(t *testing.T, p *served.Platform, of functions.Name) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var s struct{ Running, Left int }
	var in int
	for {
		r, err := p.Ready(ctx, of)
		if err == nil {
			in = r.InFlight
			err = p.Stats(ctx, r, &s)
		}
		if err != nil {
			t.Fatalf("%v; engine %+v, in flight %d", err, s, in)
		}
		if s.Left == 1 && s.Running == 0 && in == 0 {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the engine did not see its client leave: %+v, in flight %d", s, in)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// scriptClient starts a client that is a program: it reads names of cases and answers each
// with a line of JSON. It runs until the end of the test.
func scriptClient(t *testing.T, program string, args []string, env ...string) official {
	t.Helper()
	// The program ends when its input is closed, which happens after t's context has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 8*time.Minute)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s %q: %v: %s", program, args, err, stderr.String())
		}
		cancel()
	})
	lines := bufio.NewReader(out)
	return func(_ context.Context, name string) (seen, error) {
		var s seen
		if _, err := io.WriteString(in, name+"\n"); err != nil {
			return s, err
		}
		line, err := lines.ReadString('\n')
		if err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			return s, fmt.Errorf("%s: %w: %s", name, err, line)
		}
		if s.Failed != "" {
			return s, fmt.Errorf("%s: %s", name, s.Failed)
		}
		return s, nil
	}
}

// goClient runs the cases with the official client for Go.
func goClient(base, key, model, fake string) official {
	c := openai.NewClient(option.WithBaseURL(base), option.WithAPIKey(key))
	ask := func(model, words string) openai.ChatCompletionNewParams {
		return openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(words)}}
	}
	return func(ctx context.Context, name string) (seen, error) {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
		defer cancel()
		switch name {
		case "cold_stream":
			q := ask(model, "What is thaw?")
			q.MaxTokens, q.Temperature = openai.Int(12), openai.Float(0)
			q.StreamOptions.IncludeUsage = openai.Bool(true)
			return goStream(ctx, c, q, 0), nil
		case "cold_plain":
			q := ask(model, "What is thaw?")
			q.MaxTokens, q.Temperature = openai.Int(12), openai.Float(0)
			return goPlain(ctx, c, q)
		case "tools":
			q := ask(fake, "Weather in Köln?")
			b, err := os.ReadFile(filepath.Join("..", "..", "deploy", "clients", "tools.json"))
			if err != nil {
				return seen{}, err
			}
			if err := json.Unmarshal(b, &q.Tools); err != nil {
				return seen{}, err
			}
			q.ToolChoice.OfAuto = openai.String("auto")
			q.ParallelToolCalls = openai.Bool(false)
			plain, err := goPlain(ctx, c, q)
			streamed := goStream(ctx, c, q, 0)
			return seen{Plain: &plain, Streamed: &streamed}, err
		case "unknown_model":
			_, err := c.Chat.Completions.New(ctx, ask("tinny", "hi"))
			return seen{Error: goError(err)}, nil
		case "dies":
			return goStream(ctx, c, ask(fake, "@fake tokens=50 delay=20ms die=5"), 0), nil
		case "cancel":
			return goStream(ctx, c, ask(fake, "@fake tokens=3000 delay=20ms"), 1), nil
		case "batch":
			return goBatch(ctx, c, model)
		}
		return seen{}, fmt.Errorf("no case %s", name)
	}
}

func goBatch(ctx context.Context, c openai.Client, model string) (s seen, err error) {
	content := batchLines("go", 3, model)
	file, err := c.Files.New(ctx,
		openai.FileNewParams{File: openai.File(strings.NewReader(content), "lines.jsonl", "application/jsonl"), Purpose: openai.FilePurposeBatch})
	if err != nil {
		return s, err
	}
	b, err := c.Batches.New(ctx,
		openai.BatchNewParams{InputFileID: file.ID, Endpoint: openai.BatchNewParamsEndpointV1ChatCompletions,
			CompletionWindow: openai.BatchNewParamsCompletionWindow24h})
	for err == nil && b.Status != openai.BatchStatusCompleted && b.Status != openai.BatchStatusFailed {
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		b, err = c.Batches.Get(ctx, b.ID)
	}
	if err != nil {
		return s, err
	}
	res, err := c.Files.Content(ctx, b.OutputFileID)
	if err != nil {
		return s, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	s.Text, s.Chunks, s.Finish = string(text), int(b.RequestCounts.Completed), string(b.Status)
	_, cancelled := c.Batches.Cancel(ctx, b.ID)
	s.Error = goError(cancelled)
	return s, err
}

func goPlain(ctx context.Context, c openai.Client, q openai.ChatCompletionNewParams) (seen, error) {
	a, err := c.Chat.Completions.New(ctx, q)
	if err != nil {
		return seen{}, err
	}
	s := seen{Text: a.Choices[0].Message.Content, Finish: a.Choices[0].FinishReason, Usage: a.Usage.TotalTokens}
	for _, call := range a.Choices[0].Message.ToolCalls {
		s.Tool, s.Arguments = call.Function.Name, call.Function.Arguments
	}
	return s, nil
}

// goStream reads a stream to its end, or disconnects after leave chunks.
func goStream(ctx context.Context, c openai.Client, q openai.ChatCompletionNewParams, leave int) seen {
	var s seen
	stream := c.Chat.Completions.NewStreaming(ctx, q)
	defer stream.Close()
	for stream.Next() {
		chunk := stream.Current()
		s.Chunks++
		s.Usage += chunk.Usage.TotalTokens
		for _, choice := range chunk.Choices {
			s.Text += choice.Delta.Content
			if choice.FinishReason != "" {
				s.Finish = choice.FinishReason
			}
			for _, call := range choice.Delta.ToolCalls {
				s.Tool += call.Function.Name
				s.Arguments += call.Function.Arguments
			}
		}
		if s.Chunks == leave {
			return s
		}
	}
	s.Error = goError(stream.Err())
	return s
}

func goError(err error) *shown {
	if err == nil {
		return nil
	}
	e := &shown{Class: fmt.Sprintf("%T", err), Message: err.Error()}
	var api *openai.Error
	if errors.As(err, &api) {
		e.Known, e.Status, e.Code, e.Param, e.Type, e.Message = true, api.StatusCode, api.Code, api.Param, api.Type, api.Message
		if api.Response != nil {
			e.RequestID = api.Response.Header.Get("X-Request-Id")
		}
	}
	// The client returns an error in a stream as the raw event.
	var event *ssestream.StreamError
	if errors.As(err, &event) {
		var frame struct {
			Error struct{ Code, Type, Message string }
		}
		if json.Unmarshal(event.Event.Data, &frame) == nil {
			e.Known, e.Code, e.Type = true, frame.Error.Code, frame.Error.Type
		}
	}
	return e
}
