package cli

import (
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
