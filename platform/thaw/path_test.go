package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

var updatePaths = flag.Bool("update", false, "write the paths of requests into deploy/docs/development.md")

// Lines of deploy/docs/development.md around the paths.
const (
	pathsBegin = "<!-- The paths of requests: go test ./platform/thaw -run TestPaths -update -->\n"
	pathsEnd   = "<!-- End of the paths. -->\n"
)

// TestPaths compares the paths of requests in deploy/docs/development.md with the stacks of
// the goroutines that handle real ones: while a request is held until its engine is ready,
// and while its answer streams.
func TestPaths(t *testing.T) {
	folder := t.TempDir()
	holds := filepath.Join(folder, "holds")
	model := func(name, file string) string { // loads until the file is gone
		loads := filepath.Join(folder, file)
		if err := os.WriteFile(loads, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return fakeModel(name, "--loads "+loads+" --holds "+holds, "")
	}
	p := start(t, map[string]string{
		"plain.yaml":  model("plain", "plain"),
		"routed.yaml": model("routed", "routed"),
		"member.yaml": model("member", "member"),
		"other.yaml":  model("other", "member"),
		"auto.yaml":   "apiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: auto}\nspec:\n  rules:\n    - {name: all, to: [routed]}\n",
		"panel.yaml":  "apiVersion: thaw.dev/v1\nkind: Composition\nmetadata: {name: panel}\nspec: {pattern: ensemble, members: [member, other], coordinator: member}\n",
	})
	var page strings.Builder
	// add adds a request to the page: its stack while it is held for the engine named by cold,
	// if any, and while its answer streams.
	add := func(heading, cold string, send func(), packages ...string) {
		if err := os.WriteFile(holds, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&page, "\n%s:\n\n| while | packages and functions, the caller first |\n| --- | --- |\n", heading)
		ended := make(chan struct{})
		go func() { defer close(ended); send() }()
		held := ""
		if cold != "" {
			held = p.blockedStack("", packages...)
			fmt.Fprintf(&page, "| it is held | %s |\n", held)
			os.Remove(filepath.Join(folder, cold))
			p.awaitState("default/"+cold, "READY")
		}
		fmt.Fprintf(&page, "| its answer streams | %s |\n", p.blockedStack(held, append(packages, "activator/upstream")...))
		os.Remove(holds)
		<-ended
	}
	ask := func(function string) func() { return func() { p.ask(function) } }

	add("A cold request on one machine", "plain", ask("plain"), "activator", "activator/httpserver")
	add("A cold request that a Router routes", "routed", ask("auto"), "activator", "activator/httpserver")
	add("A text that is submitted on a socket", "", p.submit, "activator", "activator/socket")
	add("A member's request of a Composition", "member", ask("panel"), "activator", "activator/call")
	p.comparePaths(page.String())
}

// blockedStack waits for a goroutine that has functions of all packages on its stack and is
// the same twice in turn and other than before, and returns its functions.
func (p *platform) blockedStack(before string, packages ...string) (stack string) {
	p.t.Helper()
	p.eventually("a goroutine in "+strings.Join(packages, " and "), func() bool {
		last := stack
		stack = goroutineIn(packages)
		return stack != "" && stack == last && stack != before
	})
	return stack
}

// moduleFrame matches a line of a stack that names a function of this module: its package
// and its name.
var moduleFrame = regexp.MustCompile(`(?m)^github\.com/thaw-dev/thaw/([a-z0-9/-]+)\.([^\n]+)\(`)

// closure matches what the compiler appends to the name of a function for those in it.
var closure = regexp.MustCompile(`(\.func\d+|\.\d+|-fm|\.gowrap\d+|-range\d+)+$|\[\.\.\.\]`)

// goroutineIn returns the functions of this module on the stack of the first goroutine that
// has all the packages on it, the caller first.
func goroutineIn(packages []string) string {
	buffer := make([]byte, 4<<20)
	for text := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		var functions, seen []string
		for _, m := range moduleFrame.FindAllStringSubmatch(text, -1) {
			name := strings.NewReplacer("(*", "", ")", "").Replace(closure.ReplaceAllString(m[2], ""))
			if name = "`" + m[1] + "." + name + "`"; len(functions) == 0 || functions[len(functions)-1] != name {
				functions = append(functions, name)
			}
			seen = append(seen, m[1])
		}
		if !slices.ContainsFunc(packages, func(p string) bool { return !slices.Contains(seen, p) }) {
			slices.Reverse(functions)
			return strings.Join(functions, " > ")
		}
	}
	return ""
}

// ask sends a streamed request and reads its answer.
func (p *platform) ask(function string) {
	res, err := web.Post(p.url+"/v1/chat/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":"a"}]}`, function)))
	if err != nil {
		p.t.Error(err)
		return
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
		p.t.Errorf("%s: %d %v %s", function, res.StatusCode, err, b)
	}
}

// submit sends a text on a socket and reads its answer.
func (p *platform) submit() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(p.url, "http")+"/ws/path",
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {p.admin()}}})
	if err != nil {
		p.t.Error(err)
		return
	}
	defer c.CloseNow()
	for _, text := range []string{"a text", "__submit__"} {
		if err := c.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			p.t.Error(err)
			return
		}
	}
	for {
		_, frame, err := c.Read(ctx)
		if err != nil || bytes.Contains(frame, []byte(`"type":"error"`)) {
			p.t.Errorf("%v %s", err, frame)
			return
		}
		if bytes.Contains(frame, []byte(`"type":"generation_complete"`)) {
			return
		}
	}
}

// comparePaths compares the part of development.md with what a test has seen, or with
// -update writes it.
func (p *platform) comparePaths(seen string) {
	p.t.Helper()
	page := filepath.Join("..", "..", "deploy", "docs", "development.md")
	raw, err := os.ReadFile(page)
	if err != nil {
		p.t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(raw), pathsBegin)
	old, after, ends := strings.Cut(rest, pathsEnd)
	switch seen += "\n"; {
	case !begins || !ends:
		p.t.Fatalf("%s does not have the lines around the paths", page)
	case old == seen:
	case !*updatePaths:
		p.t.Fatalf("the paths of requests in %s are stale: go test ./platform/thaw -run TestPaths -update\n%s", page, seen)
	default:
		if err := os.WriteFile(page, []byte(before+pathsBegin+seen+pathsEnd+after), 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
}
