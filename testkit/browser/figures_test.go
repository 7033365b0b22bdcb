package browser

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
)

var figures = flag.String("figures", "", "file to write what was measured into")

// TestFigures measures the console and writes a page of results. It bounds nothing: how
// fast this machine is, is no verdict.
func TestFigures(t *testing.T) {
	if *figures == "" {
		t.Skip("-figures FILE measures")
	}
	// Nothing was compiled before; the modules are on the machine.
	var answer string
	t.Run("the first answer", func(t *testing.T) { answer = fmt.Sprintf("%.0f s", firstAnswer(t, t.TempDir()).Seconds()) })
	p := start(t, map[string]string{"chat.yaml": model(t, "chat-7b", 0, minute5)})
	p.chat("chat-7b")
	paint, data, least := firstPaint(t, p)
	update, longest := updates(t, p)
	share := viewers(t)
	var growth []string
	for _, d := range dayPages {
		var u [3]memoryUse
		t.Run(d.name, func(t *testing.T) { u = dayOf(t, p, d.path, d.shows) })
		growth = append(growth, fmt.Sprintf("%s: %.1f, %.1f, %.1f MiB; %d, %d, %d nodes", d.name, u[0].bytes/(1<<20), u[1].bytes/(1<<20), u[2].bytes/(1<<20), u[0].nodes, u[1].nodes, u[2].nodes))
	}
	commit, _ := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	memory, _ := os.ReadFile("/proc/meminfo")
	average, _ := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(average), " ")
	total, _ := strconv.Atoi(strings.Fields(string(memory))[1])
	line := func(what, want string, got string) string { return fmt.Sprintf("| %s | %s | %s |\n", what, want, got) }
	text := "# The console\n\n" +
		"Measured by `make bench-console` in Debian's chromium, headless, against `thaw serve` on loopback.\n" +
		fmt.Sprintf("Commit %s, %s, %d cores, %d GiB, %s/%s. Other work ran on the machine (load %s).\n\n", strings.TrimSpace(string(commit)), time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), (total+1<<19)>>20, runtime.GOOS, runtime.GOARCH, load) +
		"| what | wanted | measured |\n| --- | --- | --- |\n" +
		line("first contentful paint, without a cache, median of 7 (worst)", "under 300 ms", paint) +
		line("the same of a page of one word (`/healthz`), for comparison", "", least) +
		line("the lists are drawn, median of 7 (worst)", "", data) +
		line("script, style and layout of an update of all of 1,000 replicas, mean of 30", "under 16 ms", update) +
		line("the longest such update", "", longest) +
		line("processor time of the server with 50 viewers of 200 models, of one core", "under 5 %", share) +
		line("memory and nodes of the document after a hundredth, a tenth and all of the 86,400 updates of a day", "flat", strings.Join(growth, "<br>")) +
		line("from `git clone` to the whole of the first answer in the playground", "under 4 min", answer) +
		"\nThe first paint is that of the bar at the top, which is in the file itself; the lists follow. An update is one change of each of the 1,000 replicas, which the page reads as 1,000 lines and draws once;\nthe time is processor time of the browser's main thread (ScriptDuration, RecalcStyleDuration and LayoutDuration of\nthe DevTools protocol), with the reading of the lines. Memory is that of scripts and of the browser's objects of the page, after garbage was\ncollected. The way to the first answer is a clone of this repository from the disk, `make run` with an empty build cache\nand the modules on the machine, and a browser that is open: the playground, the model `tiny`, a text, its cold start and\nits whole answer.\n"
	if err := os.WriteFile(*figures, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text)
}

func medianOf(list []float64, unit string) string {
	slices.Sort(list)
	return fmt.Sprintf("%.0f %s (%.0f %s)", list[len(list)/2], unit, list[len(list)-1], unit)
}

// firstPaint opens the page seven times without a cache, each time after a page of one word,
// whose own first paint shows what the machine and the browser take at least.
func firstPaint(t *testing.T, p *platform) (paint, data, least string) {
	var paints, lists, words []float64
	b := openBlank(t)
	b.do(call(network.SetCacheDisabled, network.SetCacheDisabledParams{CacheDisabled: true}))
	painted := func(path string) float64 {
		b.do(chromedp.Navigate(p.url + path))
		b.until("it is painted", "performance.getEntriesByName('first-contentful-paint').length > 0")
		return value[float64](b, "performance.getEntriesByName('first-contentful-paint')[0].startTime")
	}
	for range 7 {
		words = append(words, painted("/healthz"))
		paints = append(paints, painted("/ui/"))
		b.sees("Last cold start")
		lists = append(lists, value[float64](b, "performance.getEntriesByName('lists')[0].startTime"))
	}
	return medianOf(paints, "ms"), medianOf(lists, "ms"), medianOf(words, "ms")
}

// change is one line of the stream of lists.
type change struct {
	List  string `json:"list"`
	Event string `json:"event"`
	Item  any    `json:"item,omitempty"`
	Name  string `json:"name,omitempty"`
}

// feed is a server that passes on everything but the lists. Those have items at first, and
// then what each call of write writes, which returns when it is on its way.
func feed(t *testing.T, p *platform, items func(put func(change))) (address string, write func(func(put func(change)))) {
	target, err := url.Parse(p.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // the guard compares it with the Origin
	}}
	writes, written := make(chan func(put func(change))), make(chan struct{})
	mux := http.NewServeMux()
	mux.Handle("/", proxy)
	mux.HandleFunc("/api/v1/lists", func(w http.ResponseWriter, r *http.Request) {
		names := strings.Split(r.URL.Query().Get("of"), ",")
		put := func(c change) {
			if !slices.Contains(names, c.List) {
				return
			}
			b, err := json.Marshal(c)
			if err != nil {
				panic(err)
			}
			w.Write(append(b, '\n'))
		}
		for _, name := range names {
			put(change{List: name, Event: "reset"})
		}
		items(put)
		for _, name := range names {
			put(change{List: name, Event: "synced"})
		}
		w.(http.Flusher).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case f := <-writes:
				f(put)
				w.(http.Flusher).Flush()
				written <- struct{}{}
			}
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.CloseClientConnections)
	return s.URL, func(f func(put func(change))) {
		t.Helper()
		select {
		case writes <- f:
			<-written
		case <-time.After(patience):
			t.Fatal("no page reads the lists")
		}
	}
}

// busy is a server with 1,000 replicas that all change at each beat.
func busy(t *testing.T, p *platform) (address string, beat func()) {
	round := 0
	replicas := func(put func(change)) {
		for i := range 1000 {
			put(change{List: "replicas", Event: "put", Item: map[string]any{"id": fmt.Sprintf("r-%04d", i), "function": fmt.Sprintf("default/model-%03d", i%250), "node": fmt.Sprintf("node-%d", i%20), "state": "READY", "since": "2026-01-01T00:00:00Z", "in_flight": round, "gpus": []int{i % 8}, "gpu_memory": 4 << 30, "memory": 1 << 30, "tier": "GPU_RESIDENT"}})
		}
	}
	address, write := feed(t, p, func(put func(change)) {
		replicas(put)
		for i := range 20 {
			gpus := []map[string]any{}
			for g := range 8 {
				gpus = append(gpus, map[string]any{"index": g, "name": "H100", "memory_total": 80 << 30, "memory_free": 0, "health": "ok"})
			}
			put(change{List: "nodes", Event: "put", Item: map[string]any{"id": fmt.Sprintf("node-%d", i), "state": "INFERRING", "seen": "2026-01-01T00:00:00Z", "gpus": gpus, "memory": map[string]any{"total": 512 << 30, "used": 50 << 30}, "store": map[string]any{"bytes": 1 << 40, "used": 0}, "replicas": 50}})
		}
		for i := range 250 {
			put(change{List: "functions", Event: "put", Item: map[string]any{"name": fmt.Sprintf("default/model-%03d", i), "team": "default", "model": fmt.Sprintf("model-%03d", i), "type": "Model", "state": "READY", "replicas": 4, "active": 0, "queued": 0}})
		}
	})
	return address, func() {
		round++
		write(replicas)
	}
}

// metrics are the browser's own of the page, by name.
func (p *page) metrics() map[string]float64 {
	p.t.Helper()
	r, err := chromedp.Run(p.ctx, func(ctx context.Context, t *chromedp.Target) (performance.GetMetricsResult, error) {
		return cdp.Call(ctx, t, performance.GetMetrics, cdp.Empty{})
	})
	if err != nil {
		p.t.Fatal(err)
	}
	m := map[string]float64{}
	for _, x := range r.Metrics {
		m[x.Name] = x.Value
	}
	return m
}

// updates are the mean and the longest time of an update.
func updates(t *testing.T, p *platform) (mean, longest string) {
	address, beat := busy(t, p)
	b := openBlank(t)
	b.do(chromedp.Navigate(address + "/ui/"))
	b.do(call(performance.Enable, performance.EnableParams{TimeDomain: "threadTicks"}))
	b.sees("1000", "node-19")
	round := 0
	once := func() float64 {
		before := b.metrics()
		beat()
		round++
		b.until("the update is drawn", fmt.Sprintf(drawn, round))
		after := b.metrics()
		sum := 0.0
		for _, name := range []string{"ScriptDuration", "RecalcStyleDuration", "LayoutDuration"} {
			sum += after[name] - before[name]
		}
		return sum * 1000
	}
	value[bool](b, "document.getElementById('replicas').scrollIntoView(), true")
	once()
	var times []float64
	total := 0.0
	for range 30 {
		x := once()
		times = append(times, x)
		total += x
	}
	return fmt.Sprintf("%.1f ms", total/30), fmt.Sprintf("%.1f ms", slices.Max(times))
}

// viewers is the share of a core that the server takes while 50 viewers follow it.
func viewers(t *testing.T) string {
	files := map[string]string{}
	for i := range 200 {
		name := fmt.Sprintf("model-%03d", i)
		files[name+".yaml"] = model(t, name, 0, minute5)
	}
	p := start(t, files)
	for i := range 4 {
		p.chat(fmt.Sprintf("model-%03d", i))
	}
	for range 50 {
		res, err := http.Get(p.url + "/api/v1/lists?watch&of=functions,replicas,nodes,coldstarts")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		go io.Copy(io.Discard, res.Body)
	}
	ticks := func() int {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.process.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		user, _ := strconv.Atoi(f[11])
		system, _ := strconv.Atoi(f[12])
		return user + system
	}
	const long = 20 * time.Second
	before := ticks()
	<-time.After(long)
	return fmt.Sprintf("%.1f %%", float64(ticks()-before)/long.Seconds()) // a tick is 10 ms
}
