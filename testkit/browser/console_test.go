package browser

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

var screenshots = flag.String("screenshots", "", "folder to write a picture of each page into")

const routerFile = `apiVersion: thaw.dev/v1
kind: Router
metadata: {name: auto}
spec:
  rules:
  - {name: code, when: {code: true}, to: [coder-14b]}
  - {name: general, to: [chat-7b]}
`

const minute5 = "  scale: {idle: 5m}\n"

func gpu(n int, memory string) string {
	return fmt.Sprintf("  resources: {gpus: %d, gpuMemory: %s, memory: 2Gi}\n", n, memory) + minute5
}

// fleet is a platform with models in every state.
func fleet(t *testing.T) *platform {
	t.Helper()
	vendor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}`)
	}))
	t.Cleanup(vendor.Close)
	files := map[string]string{
		"chat.yaml":    model(t, "chat-7b", 300*time.Millisecond, gpu(1, "14Gi")),
		"coder.yaml":   model(t, "coder-14b", 700*time.Millisecond, gpu(1, "30Gi")),
		"extract.yaml": model(t, "extract-1b", 100*time.Millisecond, gpu(1, "3Gi")),
		"vision.yaml":  model(t, "research/vision-8b", 400*time.Millisecond, gpu(1, "18Gi")),
		"judge.yaml":   model(t, "judge-70b", 1500*time.Millisecond, gpu(1, "60Gi")),
		"slow.yaml":    model(t, "slow-start", time.Hour, gpu(1, "12Gi")),
		"giant.yaml":   model(t, "giant-400b", time.Hour, gpu(2, "79Gi")),
		"tiny.yaml":    "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: tiny}\nspec: {source: ./weights, engine: ember, resources: {memory: 64Mi}}\n",
		"broken.yaml":  model(t, "broken", -1, minute5),
		"auto.yaml":    routerFile,
		"panel.yaml":   "apiVersion: thaw.dev/v1\nkind: Composition\nmetadata: {name: panel}\nspec: {pattern: ensemble, members: [chat-7b, extract-1b], coordinator: judge-70b}\n",
		"cloud.yaml":   "apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: cloud}\nspec: {url: " + vendor.URL + "/v1, allow: internal, price: {input: 10000, output: 10000}, limits: {spendPerDay: 5}}\n",
	}
	p := start(t, files, "--gpus", "2", "--gpu-memory", "80Gi", "--memory", "64Gi")
	for _, m := range []string{"chat-7b", "coder-14b", "extract-1b", "research/vision-8b", "judge-70b", "tiny", "cloud", "auto", "auto"} {
		p.chat(m)
	}
	p.post("/api/v1/functions/default/coder-14b/stop", "")
	p.waitGone("default/coder-14b")
	p.chat("coder-14b")
	for _, m := range []string{"slow-start", "giant-400b", "giant-400b", "broken"} {
		c := &chatter{p: p}
		c.begin(m)
		t.Cleanup(c.end)
	}
	return p
}

// TestPages: every page shows what a real server has, in light and dark and on a phone,
// without a violation of accessibility and without a complaint of the browser.
func TestPages(t *testing.T) {
	p := fleet(t)
	b := open(t, p.url+"/ui/")
	b.sees("live", "GPU 0", "research/vision-8b", "2 requests", "it needs 2 GPUs with 79 GiB each on one node", "slow-start",
		"Last cold start", "Stops in")
	b.sees("broken", "failed", "the tokenizer of this model is not known", "of 9 models")
	b.check("now")
	if got := value[string](b, "document.querySelector('.bar').getAttribute('aria-label')"); !strings.Contains(got, "of 80 GiB") {
		t.Errorf("the bar of a GPU is %q", got)
	}

	b.press("nav a", "Cold starts")
	b.sees("first token", "slow-start", "chat-7b")
	b.until("the start of chat-7b is drawn", "document.querySelectorAll('.strip i').length > 10")
	b.check("cold-starts")
	value[bool](b, "[...document.querySelectorAll('tr')].find(r => r.textContent.startsWith('coder-14b')).querySelector('td a').click(), true")
	b.sees("What is known of it", "Request", "warmup", "the median of its 2 starts")
	request := value[string](b, "[...document.querySelectorAll('dt')].find(e => e.textContent === 'Request').nextElementSibling.textContent")
	b.check("cold-start")
	b.press("nav a", "Cold starts")
	value[bool](b, "[...document.querySelectorAll('tr')].find(r => r.textContent.startsWith('giant-400b'))."+
		"querySelector('td a').click(), true")
	b.sees("What is known of it", "cold") // it has no place yet
	if got := value[string](b, "[...document.querySelectorAll('.waterfall tbody th')].map(e => e.textContent).join()"); got != "queue" {
		t.Errorf("the start that has no place yet shows %q", got)
	}
	b.do(chromedp.Navigate(p.url + "/ui/cold-starts/" + request)) // the id of a request finds its start
	b.until("the start is found", "document.querySelector('h1').textContent === 'coder-14b'")

	b.press("nav a", "Models")
	b.sees("judge-70b", "research/vision-8b", "Router")
	b.check("models")
	b.write("input[type=search]", "vision")
	b.sees("1 of 12")
	b.press("th a", "research/vision-8b")
	b.sees("Replicas", "Stops in", "ready")
	b.check("")
	b.press("[role=tab]", "Log")
	b.sees("INFO a request")
	b.check("")
	b.press("[role=tab]", "Events")
	b.sees("requests wait for it", "it has answered a request")
	b.press("[role=tab]", "File")
	b.sees("kind: Model", "gpuMemory: 18Gi")
	b.check("")
	b.press("[role=tab]", "Explain")
	b.sees("Decided", "disk, ready")
	b.check("model")
	b.press("nav a", "Models")
	b.press("th a", "panel")
	b.press("[role=tab]", "File")
	b.sees("kind: Composition", "coordinator: judge-70b")
	b.press("nav a", "Models")
	b.press("th a", "cloud")
	b.press("[role=tab]", "File")
	b.sees("kind: Remote", "spendPerDay: 5")
	b.press("[role=tab]", "About")
	b.sees("Spent today", "0.06")
	b.check("")

	b.press("nav a", "Router")
	b.sees("general", "chat-7b", "is the first eligible target")
	b.write("textarea", "func main() { return 1 }")
	b.press("button", "Decide")
	b.sees("by the rule code")
	b.check("router")

	b.press("nav a", "Socket")
	b.press("button", "Connect")
	b.until("the socket is open", "document.querySelector('.filters [role=status]').textContent === 'connected'")
	b.write("#text", "hello there ")
	b.sees("general → chat-7b")
	b.press("button", "Submit")
	b.sees("The weights are read once", "complete in")
	b.check("socket")

	b.do(chromedp.Navigate(p.url + "/ui/none"))
	b.sees("There is no such page")
	b.check("")
	b.wantNoFaults("status of 404")
}

// TestMarkup: markup in an answer, a log, an event, a source and an address is text.
func TestMarkup(t *testing.T) {
	const markup = `<img src=x onerror=window.hit=1><script>window.hit=1</script><b>bold</b>`
	bad := fmt.Sprintf("apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: bad}\nspec: {source: '/nowhere/%s', engine: ember}\n",
		"<img src=x onerror=hit=1>")
	p := start(t, map[string]string{"chat.yaml": model(t, "chat-7b", 0, minute5), "bad.yaml": bad})
	b := open(t, p.url+"/ui/playground/default/chat-7b")
	isText := func(where string) {
		t.Helper()
		if n := value[int](b, "document.querySelectorAll('img, main script').length + (window.hit || 0)"); n != 0 {
			t.Errorf("%s: markup became elements", where)
		}
	}
	b.sees("live")
	b.write("#message", markup)
	b.press("button", "Send")
	b.until("the answer has come back",
		"document.querySelectorAll('.turn').length === 2 && document.body.innerText.split('<b>bold</b>').length > 2")
	isText("playground")
	b.press("nav a", "Models")
	b.press("th a", "chat-7b")
	b.press("[role=tab]", "Log")
	b.sees("<b>bold</b>")
	isText("log")
	c := &chatter{p: p}
	c.begin("bad")
	t.Cleanup(c.end)
	b.press("nav a", "Models")
	b.press("th a", "bad")
	b.press("[role=tab]", "Events")
	b.sees("<img src=x onerror=hit=1>")
	isText("events")
	b.press("[role=tab]", "File")
	b.sees("kind: Model", "onerror")
	isText("file")
	b.do(chromedp.Navigate(p.url + "/ui/models/default/%3Cimg%20src=x%20onerror=hit=1%3E"))
	b.sees("There is no such model")
	isText("address")
	b.wantNoFaults()
}

// TestTypedAddresses: an address that is no encoding gets a page, not nothing.
func TestTypedAddresses(t *testing.T) {
	p := start(t, map[string]string{"chat.yaml": model(t, "chat-7b", 0, minute5)})
	for path, want := range map[string]string{"/ui/models/default/%zz": "There is no such model", "/ui/%": "There is no such page", "/ui/models/default/%E0": "There is no such model"} {
		t.Run(path, func(t *testing.T) {
			b := open(t, p.url+"/ui/")
			b.sees("live")
			value[bool](b, fmt.Sprintf("history.pushState(null, '', %q), location.reload(), true", path))
			b.sees(want)
			b.wantNoFaults("status of 404", "no longer exists")
		})
	}
}

// TestPlayground: a cold model is tried; its start and the answer are seen as they go on.
func TestPlayground(t *testing.T) {
	p := start(t, map[string]string{"judge.yaml": model(t, "judge-70b", 1500*time.Millisecond, minute5), "chat.yaml": model(t, "chat-7b", 0, minute5)})
	b := open(t, p.url+"/ui/models/default/judge-70b")
	b.press("a", "Try it")
	b.sees("Write to a model")
	b.write("#message", "What is a cold start?")
	b.enter()
	b.sees("loading")
	b.until("the answer is complete", "document.querySelectorAll('.turn').length === 2 && document.body.innerText.includes('any more')")
	b.sees("5 in, 17 out", "The cold start in full", "Time to first token")
	first := value[string](b,
		"[...document.querySelectorAll('dt')].find(e => e.textContent === 'Time to first token').nextElementSibling.textContent")
	if !strings.HasSuffix(first, " s") {
		t.Errorf("time to first token: %q", first)
	}
	if left := value[string](b, "document.querySelector('#message').value"); left != "" {
		t.Errorf("the field has %q after it was sent", left)
	}
	b.check("playground")
	b.write("#message", "And a warm one?")
	b.press("button", "Send")
	b.until("a second answer", "document.querySelectorAll('.turn').length === 4 && document.querySelector('.caret') === null")
	// What comes at once has no rate: the browser may read an answer only when it is whole.
	if rate := value[float64](b,
		"parseFloat([...document.querySelectorAll('dt')].find(e => e.textContent === 'Tokens a second')."+
			"nextElementSibling.textContent) || 0"); rate > 170 {
		t.Errorf("%g tokens a second", rate)
	}
	b.wantNoFaults()
}

// TestKeys: without the right key the page asks for one; a team's key shows the team; what
// wants the admin token asks for it. The key is in no address and no storage.
func TestKeys(t *testing.T) {
	p := start(t, map[string]string{"chat.yaml": model(t, "chat-7b", 0, minute5), "vision.yaml": model(t, "research/vision-8b", 0, minute5)})
	var key struct{ Key string }
	if err := json.Unmarshal([]byte(p.post("/api/v1/keys", `{"team":"research"}`)), &key); err != nil || key.Key == "" {
		t.Fatal(err)
	}
	b := open(t, p.url+"/ui/models")
	give := func(secret string) {
		b.until("the dialog is open", "document.querySelector('dialog').open")
		b.write("#key-field", secret)
		b.press("button", "Use it")
	}
	b.sees("This server wants a key")
	b.check("")
	b.press("button", "Give a key")
	b.sees("It stays in the memory of this page")
	b.check("")
	give("sk-thaw-wrong")
	b.sees("Incorrect API key")
	b.press("button", "Give a key")
	give(key.Key)
	b.sees("live", "research/vision-8b", "Key is set")
	if value[bool](b, "document.body.innerText.includes('chat-7b')") {
		t.Error("a team's key shows another team's model")
	}
	b.press("th a", "research/vision-8b")
	b.press("button", "Wake")
	b.sees("it wants the admin token")
	give(p.admin())
	b.sees("research/vision-8b is being started", "ready")
	b.press("nav a", "Models")
	b.sees("chat-7b")

	if n := value[int](b, "localStorage.length + sessionStorage.length + document.cookie.length"); n != 0 {
		t.Error("the page stores something")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range b.urls {
		if strings.Contains(u, key.Key) || strings.Contains(u, p.admin()) {
			t.Errorf("a key is in %s", u)
		}
		if !strings.HasPrefix(u, p.url) && !strings.HasPrefix(u, "data:") && !strings.HasPrefix(u, "ws://"+p.addr) {
			t.Errorf("the page asks %s", u)
		}
	}
	if len(b.urls) < 15 {
		t.Errorf("%d requests were seen", len(b.urls))
	}
}

// TestServerGoesAway: the page says so, goes on with what it knows, and comes back by itself;
// when the server has another version then, it offers to load itself again.
func TestServerGoesAway(t *testing.T) {
	p := start(t, map[string]string{"chat.yaml": model(t, "chat-7b", 0, minute5)})
	b := open(t, p.url+"/ui/")
	b.sees("live", "of 1 models", "no GPUs", "none: models run on the processor")
	p.stop()
	b.sees("no connection", "What is shown is as of then", "of 1 models")
	b.check("")
	p.run("v1")
	b.until("the page is live again", "document.querySelector('.link.live') !== null && !document.body.innerText.includes('as of then')")
	if value[bool](b, "document.body.innerText.includes('another version')") {
		t.Error("the same version is called another")
	}
	p.stop()
	b.sees("no connection")
	p.run("v2")
	b.sees("The server has another version now")
	b.check("")
	b.press("button", "Reload")
	b.sees("thaw v2", "live")
	if value[bool](b, "document.body.innerText.includes('another version')") {
		t.Error("the new page calls itself old")
	}
	b.wantNoFaults("Failed to load resource")
}

// TestManyFunctions: a list of 10,000 functions is drawn in part, and is found through.
func TestManyFunctions(t *testing.T) {
	const many = 10000
	files := map[string]string{}
	for i := range many {
		name := fmt.Sprintf("model-%05d", i)
		files[name+".yaml"] = model(t, name, 0, minute5)
	}
	p := start(t, files)
	b := open(t, p.url+"/ui/models")
	b.sees("10000", "model-00000")
	if n := value[int](b, "document.querySelectorAll('*').length"); n > 1500 {
		t.Errorf("the page has %d elements", n)
	}
	value[bool](b, "scrollTo(0, document.body.scrollHeight), true")
	b.sees("model-09999")
	if n := value[int](b, "document.querySelectorAll('*').length"); n > 1500 {
		t.Errorf("the page has %d elements", n)
	}
	value[bool](b, "scrollTo(0, 0), true")
	b.check("", "Models: Size", "Models: Cold start") // none was started
	b.write("input[type=search]", "07777")
	b.sees("1 of 10000", "model-07777")
	b.press("nav a", "Now")
	b.sees("of 10000 models")
	b.press("nav a", "Playground")
	b.sees("Write to a model")
	b.until("names are offered", "document.querySelectorAll('datalist option').length > 0")
	if n := value[int](b, "document.querySelectorAll('datalist option').length"); n > 500 {
		t.Errorf("%d names are offered", n)
	}
	b.wantNoFaults()
}

// TestBusyFleet: 1,000 replicas, whose table is out of sight at first, are drawn in part and
// all change at once.
func TestBusyFleet(t *testing.T) {
	address, beat := busy(t, start(t, map[string]string{"chat.yaml": model(t, "chat-7b", 0, minute5)}))
	b := open(t, address+"/ui/")
	b.sees("node-19", "250 of 250 models")
	value[bool](b, "document.getElementById('replicas').scrollIntoView(), true")
	for round := range 3 {
		beat()
		b.until("the update is drawn", fmt.Sprintf(drawn, round+1))
	}
	if n := value[int](b, "document.querySelectorAll('[aria-label=Replicas] tbody tr').length"); n < 10 || n > 80 {
		t.Errorf("%d rows are drawn", n)
	}
	b.wantNoFaults()
}

// drawn is whether a row shows this number of requests.
const drawn = "[...document.querySelectorAll('[aria-label=Replicas] tbody tr')].some(r => r.children.length > 4 && " +
	"r.children[4].textContent === '%d')"

// TestKeyboard: all is reached without a mouse.
func TestKeyboard(t *testing.T) {
	p := start(t, map[string]string{"chat.yaml": model(t, "chat-7b", 0, minute5)})
	b := open(t, p.url+"/ui/models/default/chat-7b")
	b.sees("About")
	focus := func() string { return value[string](b, "document.activeElement.textContent.trim()") }
	press := func(keys string) { b.do(chromedp.KeyEvent(keys)) }
	press(kb.Tab)
	if got := focus(); got != "Skip to the page" {
		t.Errorf("first is %q", got)
	}
	press(kb.Enter)
	if got := value[string](b, "document.activeElement.id"); got != "main" {
		t.Errorf("the page is skipped to: %q", got)
	}
	value[bool](b, "document.querySelector('[role=tab]').focus(), true")
	press(kb.ArrowLeft)
	if got := focus(); got != "Explain" {
		t.Errorf("left of the first tab is %q", got)
	}
	b.sees("Where was it placed")
	press(kb.ArrowRight)
	if got := focus(); got != "About" {
		t.Errorf("right of the last tab is %q", got)
	}
	b.press("button.key", "Key")
	b.until("the field of the dialog has the focus", "document.activeElement.id === 'key-field'")
	press(kb.Escape)
	b.until("the dialog is closed", "document.querySelector('dialog').open === false")
	b.press("button.key", "Key")
	b.until("it opens once more", "document.querySelector('dialog').open")
	value[bool](b, "document.querySelector('dialog').close(), document.querySelector('button.key').click(), true")
	b.until("it opens again, though the page has not heard yet that it was closed", "document.querySelector('dialog').open")
}

// check runs axe on the page in light and dark and on a phone, looks for values that are
// missing, and writes pictures.
func (p *page) check(name string, emptyColumns ...string) {
	p.t.Helper()
	for _, v := range []struct {
		suffix        string
		width, height int64
		dark          bool
	}{{"", 1360, 860, false}, {"-dark", 1360, 860, true}, {"-phone", 390, 844, false}} {
		scheme := "light"
		if v.dark {
			scheme = "dark"
		}
		p.do(chromedp.EmulateViewport(v.width, v.height), call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}}))
		// Two frames later the page is drawn so.
		value[bool](p, "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
		if over := value[int](p, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
			p.t.Errorf("%s%s: the page is %d px wider than the window", name, v.suffix, over)
		}
		if over := value[int](p, "document.querySelector('nav').scrollWidth - document.querySelector('nav').clientWidth"); over > 0 {
			p.t.Errorf("%s%s: %d px of the names of the pages are out of sight", name, v.suffix, over)
		}
		switch {
		case v.suffix == "":
			p.wantValues(name, emptyColumns...)
			p.axe(name, "")
		case v.dark:
			p.axe(name+v.suffix, `, {runOnly: ["color-contrast", "link-in-text-block"]}`)
		}
		if *screenshots != "" && name != "" {
			png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
			if err != nil {
				p.t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(*screenshots, name+v.suffix+".png"), png, 0o644); err != nil {
				p.t.Error(err)
			}
		}
	}
	p.do(chromedp.EmulateViewport(1360, 860), call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{}))
}

// axe runs axe-core, which THAW_AXE names the script of, with these options.
func (p *page) axe(where, options string) {
	p.t.Helper()
	path := os.Getenv("THAW_AXE")
	if path == "" {
		if os.Getenv("THAW_REQUIRE") != "" {
			p.t.Fatal("THAW_AXE=PATH names axe.min.js of axe-core")
		}
		return
	}
	script, err := os.ReadFile(path)
	if err != nil {
		p.t.Fatal(err)
	}
	if !value[bool](p, "window.axe !== undefined") {
		value[bool](p, string(script)+"\n;true")
	}
	got := value[string](p, `axe.run(document`+options+`).then(r => r.passes.length < 1 ? "axe has looked at nothing" : r.violations.map(v => v.id + ": " + v.help + "\n  " + v.nodes.slice(0, 4).map(n => n.html + " " + n.failureSummary.replaceAll("\n", " ")).join("\n  ")).join("\n"))`)
	if got != "" {
		p.t.Errorf("%s: axe: %s", where, got)
	}
}
