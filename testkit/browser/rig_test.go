// Package browser has the tests of the console in a real browser, against real servers. It
// is a module of its own, so that the program needs no package that drives a browser.
package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience bounds every wait; nothing is expected to take so long.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "engine" {
		runEngine(os.Args[2:])
		return
	}
	code := m.Run()
	programs.Range(func(_, build any) bool {
		if path, err := build.(func() (string, error))(); err == nil {
			os.RemoveAll(filepath.Dir(path))
		}
		return true
	})
	os.Exit(code)
}

var programs sync.Map // version: function that returns path and error

// program is a thaw of this version, built from the module around this one.
func program(t *testing.T, version string) string {
	t.Helper()
	build := sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", "thaw-browser-")
		if err != nil {
			return "", err
		}
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-X github.com/thaw-dev/thaw/platform/cli.Version="+version, "-o",
			filepath.Join(dir, "thaw"), "./platform/thaw")
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		return filepath.Join(dir, "thaw"), nil
	})
	f, _ := programs.LoadOrStore(version, build)
	path, err := f.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// platform is a running `thaw serve`.
type platform struct {
	t         *testing.T
	addr, url string
	folder    string // of the functions
	data      string
	flags     []string
	process   *exec.Cmd
}

// start starts thaw on these files of functions and stops it with the test.
func start(t *testing.T, files map[string]string, flags ...string) *platform {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &platform{t: t, addr: l.Addr().String(), folder: t.TempDir(), data: t.TempDir(), flags: flags}
	l.Close()
	p.url = "http://" + p.addr
	shipped, err := filepath.Abs("../../functions/shipped/tiny")
	if err == nil {
		err = os.Symlink(shipped, filepath.Join(p.folder, "weights"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(p.folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.run("v1")
	t.Cleanup(p.stop)
	return p
}

func (p *platform) run(version string) {
	p.t.Helper()
	p.process = exec.Command(program(p.t, version), append([]string{"serve", "--addr", p.addr, "--data", p.data, "--functions", p.folder, "--warm", "off", "--drain", "1s"}, p.flags...)...)
	out, err := p.process.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(p.data, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	p.process.Stderr = log
	if err := p.process.Start(); err != nil {
		p.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.Contains(line, "thaw serves on") {
		text, _ := os.ReadFile(log.Name())
		p.t.Fatalf("%q %v\n%s", line, err, text)
	}
	go io.Copy(io.Discard, out)
}

func (p *platform) stop() {
	if p.process == nil {
		return
	}
	p.process.Process.Signal(syscall.SIGTERM)
	p.process.Wait()
	p.process = nil
}

func (p *platform) admin() string {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.data, "admin-token"))
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// post sends JSON with the admin token.
func (p *platform) post(path, body string) string {
	p.t.Helper()
	req, err := http.NewRequest("POST", p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.admin())
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode >= 300 {
		p.t.Fatalf("%s: %d %s %v", path, res.StatusCode, b, err)
	}
	return string(b)
}

// waitGone waits until a function has no replica.
func (p *platform) waitGone(function string) {
	p.t.Helper()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	end := time.After(patience)
	for {
		res, err := http.Get(p.url + "/api/v1/replicas")
		if err != nil {
			p.t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 200 {
			p.t.Fatalf("%d %s %v", res.StatusCode, b, err)
		}
		if !strings.Contains(string(b), fmt.Sprintf("%q", function)) {
			return
		}
		select {
		case <-look.C:
		case <-end:
			p.t.Fatalf("%s has a replica: %s", function, b)
		}
	}
}

func (p *platform) chat(model string) {
	p.t.Helper()
	p.post("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"max_tokens":8,"messages":[{"role":"user","content":"hello"}]}`, model))
}

// model is a model file whose engine is this test's own, which loads for a while.
func model(t *testing.T, name string, loads time.Duration, spec string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	team, name, ok := strings.Cut(name, "/")
	if !ok {
		team, name = "default", team
	}
	return fmt.Sprintf("apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: %s, namespace: %s}\nspec:\n  source: ./weights\n  engine: "+
		"command\n  args: [%q, engine, \"{port}\", %q]\n  health: /v1/models\n  serves: [chat]\n%s", name, team, exe, loads, spec)
}

// page is a tab of the browser.
type page struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	faults []string // what the browser complains of
	urls   []string // that it asked
}

// chromium is the browser that the tests run; without one they are skipped.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("THAW_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	if os.Getenv("THAW_REQUIRE") != "" {
		t.Fatal("there is no chromium: THAW_CHROMIUM=PATH")
	}
	t.Skip("there is no chromium: THAW_CHROMIUM=PATH")
	return ""
}

// open opens a page in a browser of its own, with the guard of fields.
func open(t *testing.T, url string) *page {
	t.Helper()
	p := openBlank(t)
	p.guardFields()
	p.do(chromedp.Navigate(url))
	return p
}

// openBlank starts a browser with an empty page.
func openBlank(t *testing.T) *page {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium(t)), chromedp.NoSandbox,
		chromedp.Flag("force-color-profile", "srgb"))
	alloc, cancelAlloc := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(func() { cancel(); cancelAlloc() })
	p := &page{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, p.listen); err != nil { // it starts the browser
		t.Fatal(err)
	}
	p.do(call(network.Enable, network.EnableParams{}), call(log.Enable, cdp.Empty{}), call(cdppage.Enable, cdppage.EnableParams{}),
		chromedp.EmulateViewport(1360, 860))
	return p
}

// call is an action that sends one command.
func call[P any](command cdp.Command[P, cdp.Empty], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, command, params)
		return err
	})
}

func (p *page) listen(ev any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := ev.(type) {
	case *runtime.EventExceptionThrown:
		b, _ := json.Marshal(e.ExceptionDetails)
		p.faults = append(p.faults, string(b))
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" {
			b, _ := json.Marshal(e.Args)
			p.faults = append(p.faults, string(b))
		}
	case *log.EventEntryAdded:
		p.faults = append(p.faults, e.Entry.Text+" "+e.Entry.URL)
	case *network.EventRequestWillBeSent:
		p.urls = append(p.urls, e.Request.URL)
	case *network.EventWebSocketCreated:
		p.urls = append(p.urls, e.URL)
	}
}

// takeFaults returns what the browser has complained of, once.
func (p *page) takeFaults() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.faults
	p.faults = nil
	return f
}

// wantNoFaults checks that the browser has nothing to complain of but what these explain.
func (p *page) wantNoFaults(explained ...string) {
	p.t.Helper()
next:
	for _, f := range p.takeFaults() {
		for _, e := range explained {
			if strings.Contains(f, e) {
				continue next
			}
		}
		p.t.Errorf("the browser complains: %s", f)
	}
}

func (p *page) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.t.Fatal(err)
	}
}

// value is what a script comes to.
func value[T any](p *page, script string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s: %v", script[:min(len(script), 200)], err)
	}
	return v
}

// until waits for a condition, a script.
func (p *page) until(what, script string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		if ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](script)); ok && err == nil {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			p.mu.Lock()
			faults := strings.Join(p.faults, "\n")
			p.mu.Unlock()
			p.t.Fatalf("not so: %s\n%s\n%s", what, value[string](p, "document.body.innerText"), faults)
		}
	}
}

// sees waits until the page has a text.
func (p *page) sees(texts ...string) {
	p.t.Helper()
	for _, text := range texts {
		p.until("the page shows "+text, fmt.Sprintf("document.body.innerText.includes(%q)", text))
	}
}

// press clicks on what a selector and a text find.
func (p *page) press(selector, text string) {
	p.t.Helper()
	find := fmt.Sprintf("[...document.querySelectorAll(%q)].find(e => e.textContent.trim() === %q && !e.disabled)", selector, text)
	p.until("there is a "+selector+" "+text, find+" !== undefined")
	value[bool](p, find+".click(), true")
}

// write puts text into a field.
func (p *page) write(selector, text string) {
	p.t.Helper()
	p.until("there is "+selector, fmt.Sprintf("document.querySelector(%q) !== null && !document.querySelector(%[1]q).disabled", selector))
	value[bool](p, fmt.Sprintf("document.querySelector(%q).focus(), document.querySelector(%[1]q).select(), true", selector))
	p.do(chromedp.KeyEvent(text))
}

// enter presses Enter as a keyboard does: the character goes with the key, and not beside it.
func (p *page) enter() {
	p.t.Helper()
	for _, e := range []input.DispatchKeyEventParams{{Type: input.DispatchKeyEventTypeKeyDown, Text: "\r"}, {Type: input.DispatchKeyEventTypeKeyUp}} {
		e.Key, e.Code, e.WindowsVirtualKeyCode = "Enter", "Enter", 13
		p.do(call(input.DispatchKeyEvent, e))
	}
}
