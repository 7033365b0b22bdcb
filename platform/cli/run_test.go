package cli

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/cli/chatstream"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

const answered = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\ndata: " +
	"{\"choices\":[{\"delta\":{\"content\":\"Ice \"}}]}\n\ndata: " +
	"{\"choices\":[{\"delta\":{\"content\":\"melts.\"},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{}}\n\ndata: " +
	"[DONE]\n\n"

const held = ": thaw state=staging percent=41 eta_s=12 position=3\n: thaw state=staging percent=50 eta_s=10 position=3\n: thaw " +
	"state=loading\n: other\ndata: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n"

func TestRun(t *testing.T) {
	s := start(t)
	var body string
	stream := func(text string) {
		s.chat = func(req *httpserver.Request, res *httpserver.Response) {
			body = string(req.Body)
			res.Set("content-type", "text/event-stream")
			res.Stream, res.Length = io.NopCloser(strings.NewReader(text)), -1
		}
	}
	stream(held + ": thaw timeline queue=1 stage=1200\n" + answered)
	out, errs, exit := s.thaw(t, "", "run", "tiny", "What", "is thaw?", "--system", "Be brief.", "--max-tokens", "9", "--temperature", "0")
	if exit != 0 || out != "Ice melts.\n" {
		t.Errorf("%d %q %q", exit, out, errs)
	}
	if want := "tiny staging [#########...............] 41% eta 12s, number 3 in line\n" +
		"tiny loading\ncold start: queue 1ms, stage 1.2s\n"; errs != want {
		t.Errorf("got  %q\nwant %q", errs, want)
	}
	if want := `{"model":"tiny","stream":true,"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"What is thaw?"}],"max_tokens":9,"temperature":0}`; body != want {
		t.Errorf("got  %s\nwant %s", body, want)
	}
	out, errs, exit = s.thaw(t, "from a pipe\n", "run", "tiny", "--quiet")
	if exit != 0 || out != "Ice melts.\n" || errs != "" || !strings.Contains(body, `"from a pipe"`) {
		t.Errorf("%d %q %q %s", exit, out, errs, body)
	}

	// Before the head comes, the progress is asked for beside the request.
	s.steps = []functions.Timeline{{ID: "cs-1", Function: "default/tiny", State: functions.Downloading, Progress: functions.Progress{State: functions.Downloading, Percent: 7, ETA: -1}}}
	s.looked = make(chan struct{})
	s.chat = func(req *httpserver.Request, res *httpserver.Response) {
		s.follow(req.Header("X-Client-Request-Id"), "cs-1")
		select {
		case <-s.looked:
		case <-req.Context().Done():
		}
		res.Set("thaw-cold-start", "cs-1")
		res.Set("Server-Timing", "stage;dur=1200.0, spawn;dur=35.5, total;dur=1236.0")
		res.Stream, res.Length = io.NopCloser(strings.NewReader(answered)), -1
	}
	out, errs, exit = s.thaw(t, "", "run", "tiny", "x")
	if want := "tiny staging [#.......................] 7%\ncold start: stage 1.2s, spawn 36ms, total 1.2s\n"; exit != 0 ||
		out != "Ice melts.\n" || errs != want {
		t.Errorf("%d %q\ngot  %q\nwant %q", exit, out, errs, want)
	}

	for _, tt := range []struct {
		name, stream string
		exit         int
		out, says    string
	}{
		{"an engine that dies", "data: {\"choices\":[{\"delta\":{\"content\":\"Ice\"}}]}\n\n" + string(openai.New(openai.EngineCrashed, "The engine\x1b[2J died.").Frame()), kit.ExitUnavailable, "Ice\n", `The engine\x1b[2J died.`},
		{"an error with a number for a code", "data: {\"error\":{\"message\":\"Out of memory.\",\"type\":\"server_error\",\"code\":500}}\n\n", kit.ExitUnavailable, "", "error: Out of memory."},
		{"an error that is a text", "data: {\"error\":\"Out of memory.\"}\n\n", kit.ExitUnavailable, "", "error: Out of memory."},
		{"an error without words", "data: {\"error\":{\"status\":7}}\n\n", kit.ExitUnavailable, "", `{"status":7}`},
		{"no error", "data: {\"error\":null,\"choices\":[{\"delta\":{\"content\":\"Ice\"},\"finish_reason\":\"stop\"}]}\n\n", 0, "Ice\n", ""},
		{"a stream that only ends", "data: {\"choices\":[{\"delta\":{\"content\":\"Ice\"}}]}\n\n", kit.ExitUnavailable, "Ice\n", chatstream.ErrCut.Error()},
		{"an end without DONE", "data: {\"choices\":[{\"delta\":{\"content\":\"Ice\"},\"finish_reason\":\"length\"}]}\n\n", 0, "Ice\n", ""},
		{"no stream of ours", "data: hello\n\n", kit.ExitFailed, "", "not what OpenAI's clients read"},
	} {
		stream(tt.stream)
		out, errs, exit := s.thaw(t, "", "run", "tiny", "x")
		if exit != tt.exit || out != tt.out || !strings.Contains(errs, tt.says) {
			t.Errorf("%s: %d %q %q", tt.name, exit, out, errs)
		}
	}
	s.chat = func(_ *httpserver.Request, res *httpserver.Response) { // as vLLM writes it
		res.Status, res.Body = 400, []byte(`{"error":{"message":"Too long.","type":"BadRequestError","param":null,"code":400}}`)
	}
	if _, errs, exit := s.thaw(t, "", "run", "tiny", "x"); exit == 0 || !strings.HasPrefix(errs, "error: Too long.\n") {
		t.Errorf("a code that is a number: exit %d: %s", exit, errs)
	}
	for code, exit := range map[openai.Code]int{
		openai.ModelNotFound: kit.ExitNotFound, openai.InvalidAPIKey: kit.ExitDenied, openai.RateLimitExceeded: kit.ExitDenied, openai.GPUQuotaExceeded: kit.ExitDenied,
		openai.QueueTimeout: kit.ExitTimeout, openai.QueueFull: kit.ExitUnavailable, openai.ModelLoading: kit.ExitUnavailable, openai.ModelLoadFailed: kit.ExitFailed, openai.InvalidJSON: kit.ExitUsage,
	} {
		s.chat = func(_ *httpserver.Request, res *httpserver.Response) {
			e := openai.New(code, "Because.")
			res.Status, res.Body = e.Status, e.Body()
		}
		if _, errs, got := s.thaw(t, "", "run", "tiny", "x"); got != exit || !strings.HasPrefix(errs, "error: Because.\n") {
			t.Errorf("%s: exit %d, want %d: %s", code, got, exit, errs)
		}
	}
}

// TestRunPiped: text that is piped in and a prompt that is an argument make one prompt, the
// piped text first, as ollama and llm join them; what is no text is not sent.
func TestRunPiped(t *testing.T) {
	s := start(t)
	var request chatRequest
	s.chat = func(req *httpserver.Request, res *httpserver.Response) {
		if err := json.Unmarshal(req.Body, &request); err != nil {
			t.Error(err)
		}
		res.Set("content-type", "text/event-stream")
		res.Stream, res.Length = io.NopCloser(strings.NewReader(answered)), -1
	}
	for _, tt := range []struct {
		stdin string
		args  []string
		want  string // the prompt, or the error where exit is not 0
		exit  int
	}{
		{"line 1\nline 2\n", []string{"Q here"}, "line 1\nline 2\n\nQ here", 0},
		{"line 1\nline 2\n", []string{"Q", "here"}, "line 1\nline 2\n\nQ here", 0},
		{"line 1\nline 2\n", nil, "line 1\nline 2", 0},
		{"line 1\nline 2\n", []string{"-"}, "line 1\nline 2", 0},
		{"x", []string{"-5 + 3?"}, "x\n\n-5 + 3?", 0},
		{"", []string{"Q here"}, "Q here", 0},
		{" \n\n", []string{"Q here"}, "Q here", 0},
		{"schön \u2028 \ufffd", []string{"Q"}, "schön \u2028 \ufffd\n\nQ", 0},
		{"", nil, "there is no prompt", kit.ExitUsage},
		{"\x89PNG\r\n\x1a\n\x00\x00", []string{"Q"}, "the user prompt is not UTF-8 text: byte 0x89 at offset 0", kit.ExitUsage},
		{"sch\xf6n", nil, "byte 0xf6 at offset 3", kit.ExitUsage},
		{"a\x00b\x00", nil, "byte 0x0 at offset 1", kit.ExitUsage},
		{"", []string{"x", "--system", "\xff"}, "the system prompt is not UTF-8 text", kit.ExitUsage},
		{strings.Repeat("x", maxPrompt+1), nil, "more than the 8Mi", kit.ExitUsage},
	} {
		request = chatRequest{}
		args := append([]string{"run", "tiny"}, tt.args...)
		if len(tt.args) == 1 && strings.HasPrefix(tt.args[0], "-5") {
			args = []string{"run", "tiny", "--", tt.args[0]}
		}
		out, errs, exit := s.thaw(t, tt.stdin, args...)
		got := errs
		if exit == 0 && len(request.Messages) == 1 {
			got = request.Messages[0].Content
		}
		if exit != tt.exit || exit == 0 && (got != tt.want || out != "Ice melts.\n") || !strings.Contains(got, tt.want) {
			t.Errorf("%.20q %q: exit %d, %.200q %q", tt.stdin, tt.args, exit, got, out)
		}
		if exit != 0 && request.Model != "" {
			t.Errorf("%.20q: a request was sent", tt.stdin)
		}
	}
}

func TestColours(t *testing.T) {
	for env, want := range map[string]string{"TERM=xterm": "\x1b[31merror:\x1b[0m x\n", "TERM=xterm NO_COLOR=1": "error: x\n",
		"TERM=dumb": "error: x\n", "": "error: x\n"} {
		var b strings.Builder
		tm := kit.NewTerminal(nil, io.Discard, &b, func(k string) string {
			_, value, _ := strings.Cut(" "+env+" ", " "+k+"=")
			value, _, _ = strings.Cut(value, " ")
			return value
		})
		tm.ErrTTY = true
		tm.Report(t.Context(), errors.New("x"))
		if b.String() != want {
			t.Errorf("%s: %q", env, b.String())
		}
	}
}
