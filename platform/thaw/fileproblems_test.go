package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFileProblems: a mistake in a watched file is in the log, in an event and in what shows
// the function, which serves on as it was; all of it ends when the file is right again.
func TestFileProblems(t *testing.T) {
	t.Parallel()
	good := fakeModel("tiny", "", "")
	p := start(t, map[string]string{"m.yaml": good})
	shown := func() string { return p.do("GET", "/api/v1/functions/default/tiny", "").body }
	if strings.Contains(shown(), `"problem"`) {
		t.Fatal(shown())
	}
	p.file("m.yaml", good+"  scale: {idle: 5x}\n")
	p.file("new.yaml", "kind: Model\n")
	p.eventually("the function names the mistake", func() bool { return strings.Contains(shown(), "spec.scale.idle") })
	if !strings.Contains(shown(), "the version before it serves on") {
		t.Error(shown())
	}
	if a := p.chat("tiny", ""); a.status != 200 {
		t.Errorf("the old version answers %d %s", a.status, a.body)
	}
	p.eventually("both files are in events", func() bool {
		events := p.do("GET", "/api/v1/events?kind=file_refused", "").body
		return strings.Contains(events, "spec.scale.idle") && strings.Contains(events, "new.yaml is not used")
	})
	p.eventually("both files are in the log", func() bool {
		return strings.Contains(p.log.String(), "spec.scale.idle") && strings.Contains(p.log.String(), "new.yaml:1")
	})
	p.file("m.yaml", good+"# right again\n")
	if err := os.Remove(filepath.Join(p.functions, "new.yaml")); err != nil {
		t.Fatal(err)
	}
	p.eventually("the problem ends", func() bool { return !strings.Contains(shown(), `"problem"`) })
}
