package main

import (
	"strings"
	"testing"
)

// TestLogOfFailedStart: `thaw logs NAME` shows what an engine wrote that ended before it served.
func TestLogOfFailedStart(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"m.yaml": modelFile("broken", "  engine: command\n  args: [/bin/sh, -c, \"echo words of the engine; exit 3\", \"{port}\"]\n")})
	if a := p.chat("broken", ""); a.status < 500 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	var out, errs strings.Builder
	if code := run(t.Context(), []string{"logs", "broken", "--server", p.url, "--data", p.data}, strings.NewReader(""), &out, &errs); code != 0 || !strings.Contains(out.String(), "words of the engine") {
		t.Errorf("exit %d: %s%s", code, out.String(), errs.String())
	}
}
