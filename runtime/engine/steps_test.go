package engine

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Kept logs of real starts (that on GPUs is put together by hand from what its
// source says); the number after a step is the line it begins with.
func TestSteps(t *testing.T) {
	for name, want := range map[string]string{
		"vllm-start-eager":    "imports 0, engine 5, weights 41, warm-up 50, app 56",
		"vllm-start-compiled": "imports 0, engine 5, weights 32, warm-up 41, compile 45, warm-up 48, app 51",
		"vllm-start-gpu":      "imports 0, engine 1, weights 10, warm-up 13, compile 15, warm-up 18, app 24",
	} {
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile("testdata/starts/" + name + ".log")
			if err != nil {
				t.Fatal(err)
			}
			zero := time.Unix(1000, 0)
			s := NewSteps(functions.EngineVLLM, zero)
			lines := strings.Split(string(b), "\n")
			for i, l := range lines {
				s.Line(l, zero.Add(time.Duration(i+1)*time.Second))
			}
			var got []string
			end := zero
			for _, d := range s.End(zero.Add(time.Duration(len(lines)) * time.Second)) {
				got = append(got, fmt.Sprintf("%s %d", d.Name, int(d.From.Sub(zero).Seconds())))
				if !d.From.Equal(end) {
					t.Errorf("%s begins at %v, the one before ended at %v", d.Name, d.From, end)
				}
				end = d.To
			}
			if s := strings.Join(got, ", "); s != want {
				t.Errorf("got  %s\nwant %s", s, want)
			}
		})
	}
	for _, e := range functions.Engines {
		s := NewSteps(e, time.Now())
		s.Line("hello", time.Now())
		if _, ok := s.Current(); ok || s.End(time.Now()) != nil {
			t.Errorf("%s: a log that tells nothing has steps", e)
		}
	}
}

// Whatever an engine writes, steps go forward in time and never come again.
func FuzzSteps(f *testing.F) {
	f.Add("non-default args:\n] Starting to load model x\n] Loading weights took 1\n] Starting to load model x")
	f.Fuzz(func(t *testing.T, log string) {
		zero := time.Unix(1000, 0)
		s := NewSteps(functions.EngineVLLM, zero)
		for i, l := range strings.Split(log, "\n") {
			s.Line(l, zero.Add(time.Duration(i)*time.Second))
		}
		done := s.End(zero.Add(time.Hour))
		if len(done) > len(vllmMarks) {
			t.Fatalf("%d steps", len(done))
		}
		for i, d := range done {
			if d.To.Before(d.From) || i > 0 && !d.From.Equal(done[i-1].To) {
				t.Fatalf("%+v", done)
			}
		}
	})
}

// A start that has failed is known by its log before the process has ended, and
// no other is taken for one.
func TestFatalLogLines(t *testing.T) {
	for name, want := range map[string]string{
		"logs/vllm-bad-flag":         "vllm serve: error: unrecognized arguments: --no-such-flag",
		"logs/vllm-bad-value":        "vllm serve: error: argument --max-num-batched-tokens: invalid human_readable_int value: 'x'",
		"logs/vllm-unknown-model":    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
		"logs/vllm-missing-shard":    "RuntimeError: Engine core initialization failed",
		"logs/vllm-no-memory":        "EngineCore failed to start.",
		"logs/vllm-core-killed":      "",
		"logs/vllm-port-taken":       "",
		"starts/vllm-start-eager":    "",
		"starts/vllm-start-compiled": "",
		"starts/vllm-start-gpu":      "",
		"logs/shell":                 "",
	} {
		b, err := os.ReadFile("testdata/" + name + ".log")
		if err != nil {
			t.Fatal(err)
		}
		s, got := NewSteps(functions.EngineVLLM, time.Now()), ""
		for l := range strings.SplitSeq(string(b), "\n") {
			if s.StartFailed(l) {
				got = l
				break
			}
		}
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if NewSteps(functions.EngineCommand, time.Now()).StartFailed(got) {
			t.Error("another engine's log")
		}
	}
}
