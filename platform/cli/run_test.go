package cli

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

const answered = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"Ice \"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"melts.\"},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n"

const held = ": thaw state=staging percent=41 eta_s=12 position=3\n: thaw state=staging percent=50 eta_s=10 position=3\n: thaw state=loading\n: other\ndata: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n"

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
	if want := "tiny staging [#########...............] 41% eta 12s, number 3 in line\ntiny loading\ncold start: queue 1ms, stage 1.2s\n"; errs != want {
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
	if want := "tiny staging [#.......................] 7%\ncold start: stage 1.2s, spawn 36ms, total 1.2s\n"; exit != 0 || out != "Ice melts.\n" || errs != want {
		t.Errorf("%d %q\ngot  %q\nwant %q", exit, out, errs, want)
	}

	for _, tt := range []struct {
		name, stream string
		exit         int
		out, says    string
	}{
		{"an engine that dies", "data: {\"choices\":[{\"delta\":{\"content\":\"Ice\"}}]}\n\n" + string(openai.New(openai.EngineCrashed, "The engine\x1b[2J died.").Frame()), ExitUnavailable, "Ice\n", `The engine\x1b[2J died.`},
		{"a stream that only ends", "data: {\"choices\":[{\"delta\":{\"content\":\"Ice\"}}]}\n\n", ExitUnavailable, "Ice\n", errCut.Error()},
		{"an end without DONE", "data: {\"choices\":[{\"delta\":{\"content\":\"Ice\"},\"finish_reason\":\"length\"}]}\n\n", 0, "Ice\n", ""},
		{"no stream of ours", "data: hello\n\n", ExitFailed, "", "not what OpenAI's clients read"},
	} {
		stream(tt.stream)
		out, errs, exit := s.thaw(t, "", "run", "tiny", "x")
		if exit != tt.exit || out != tt.out || !strings.Contains(errs, tt.says) {
			t.Errorf("%s: %d %q %q", tt.name, exit, out, errs)
		}
	}
	for code, exit := range map[openai.Code]int{
		openai.ModelNotFound: ExitNotFound, openai.InvalidAPIKey: ExitDenied, openai.RateLimitExceeded: ExitDenied, openai.GPUQuotaExceeded: ExitDenied,
		openai.QueueTimeout: ExitTimeout, openai.QueueFull: ExitUnavailable, openai.ModelLoading: ExitUnavailable, openai.ModelLoadFailed: ExitFailed, openai.InvalidJSON: ExitUsage,
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

// TestLines: on a terminal one line is rewritten; elsewhere a line per change
// or 5 s.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		c := &command{Terminal: NewTerminal(nil, io.Discard, &b, func(string) string { return "" }), now: time.Now}
		l := c.NewProgressLine()
		for i := range 12 {
			l.Show("staging", "tiny staging "+string(rune('a'+i)))
			time.Sleep(time.Second)
		}
		l.Show("ready", "tiny ready\x07")
		l.Clear()
		if want := "tiny staging a\ntiny staging f\ntiny staging k\ntiny ready\\a\n"; b.String() != want {
			t.Errorf("got %q, want %q", b.String(), want)
		}
		b.Reset()
		c.ErrTTY = true
		l = c.NewProgressLine()
		l.Show("staging", "one")
		l.Show("staging", strings.Repeat("x", 200))
		l.Clear()
		l.Clear()
		if want := "\r\x1b[Kone\r\x1b[K" + strings.Repeat("x", 79) + "\r\x1b[K"; b.String() != want {
			t.Errorf("got %q, want %q", b.String(), want)
		}
	})
}

func TestRate(t *testing.T) {
	var r Rate
	now := time.Unix(0, 0)
	for i := range 100 {
		r.Add(now, functions.Bytes(i)*100)
		now = now.Add(time.Second)
	}
	if r.value < 99 || r.value > 101 {
		t.Errorf("%f", r.value)
	}
	if got := r.Add(now.Add(time.Second), 5); got < 99 { // another file began
		t.Errorf("%f", got)
	}
}

func TestColours(t *testing.T) {
	for env, want := range map[string]string{"": "\x1b[31merror:\x1b[0m x\n", "NO_COLOR": "error: x\n"} {
		var b strings.Builder
		tm := NewTerminal(nil, io.Discard, &b, func(k string) string {
			if k == env {
				return "1"
			}
			return ""
		})
		tm.ErrTTY = true
		tm.Report(t.Context(), errors.New("x"))
		if b.String() != want {
			t.Errorf("%s: %q", env, b.String())
		}
	}
}

func FuzzReadStream(f *testing.F) {
	f.Add(held + answered)
	f.Add(": thaw timeline\n: thaw\n:\ndata:\n\ndata: {\"error\":{}}\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		_ = readStream(strings.NewReader(text), func(fr streamFrame) error {
			if fr.waiting != nil {
				if s := Plain(fr.waiting.text("m")); strings.ContainsAny(s, "\x1b\r\n") {
					t.Errorf("%q", s)
				}
			}
			if s := Readable(fr.text); strings.ContainsAny(s, "\x1b\r\x00") {
				t.Errorf("%q", s)
			}
			return nil
		})
	})
}
