package browser

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	cdpmemory "github.com/chromedp/cdproto/memory"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// A day has an update of the lists in each second.
const (
	day       = 24 * 60 * 60
	dayModels = 50
	dayStarts = 100 // cold starts that the server remembers
)

// memoryUse is what a page has after its garbage was collected.
type memoryUse struct {
	bytes float64 // of scripts and of the browser's objects of the page
	nodes int64
}

func (p *page) memoryUse() memoryUse {
	p.t.Helper()
	use, err := chromedp.Run(p.ctx, func(ctx context.Context, t *chromedp.Target) (u memoryUse, err error) {
		for range 2 { // objects of the browser go after those of the scripts that hold them
			if _, err = cdp.Call(ctx, t, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
				return u, err
			}
		}
		heap, err := cdp.Call(ctx, t, runtime.GetHeapUsage, cdp.Empty{})
		if err != nil {
			return u, err
		}
		counters, err := cdp.Call(ctx, t, cdpmemory.GetDOMCounters, cdp.Empty{})
		return memoryUse{heap.UsedSize + heap.EmbedderHeapUsedSize, counters.Nodes}, err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return use
}

// dayOf shows a page the updates of a day as fast as it reads them, and returns its memory
// after a hundredth, a tenth and all of them. shows is a condition on the page that holds when
// it shows the newest update.
func dayOf(t *testing.T, p *platform, path string, shows func(second int) string) [3]memoryUse {
	t.Helper()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(second int) string { return begin.Add(time.Duration(second) * time.Second).Format(time.RFC3339) }
	function := func(i, active int) any {
		return map[string]any{"name": fmt.Sprintf("default/model-%02d", i), "team": "default", "model": fmt.Sprintf("model-%02d", i), "type": "Model", "engine": "vllm", "state": "READY", "replicas": 1, "active": active, "queued": 0}
	}
	// The replica of the minute is one of its model's, and takes the place of the one before it.
	replica := func(minute, second int) any {
		return map[string]any{"id": fmt.Sprintf("r-%d", minute), "function": fmt.Sprintf("default/model-%02d", minute%dayModels), "node": "node-0", "state": "READY", "since": at(minute * 60), "in_flight": second % 9, "gpus": []int{0}, "gpu_memory": 1 << 30, "memory": 1 << 30, "tier": "GPU_RESIDENT"}
	}
	node := func(second int) any {
		gpu := map[string]any{"index": 0, "name": "H100", "memory_total": 80 << 30, "utilization": second % 100, "health": "ok"}
		return map[string]any{"id": "node-0", "state": "INFERRING", "seen": at(second), "gpus": []any{gpu}, "memory": map[string]any{"total": 512 << 30, "used": 50<<30 + second}, "store": map[string]any{"bytes": 1 << 40, "used": 1 << 30}, "replicas": dayModels}
	}
	address, write := feed(t, p, func(put func(change)) {
		for i := range dayModels {
			put(change{List: "functions", Event: "put", Item: function(i, 0)})
			put(change{List: "replicas", Event: "put", Item: replica(i, 0)})
		}
		put(change{List: "nodes", Event: "put", Item: node(0)})
	})
	update := func(put func(change), second int) {
		put(change{List: "functions", Event: "put", Item: function(0, second)})
		put(change{List: "nodes", Event: "put", Item: node(second)})
		minute := dayModels + second/60
		if second%60 == 0 {
			id := fmt.Sprintf("cs-%d", minute)
			put(change{List: "replicas", Event: "removed", Name: fmt.Sprintf("r-%d", minute-dayModels)})
			put(change{List: "coldstarts", Event: "removed", Name: fmt.Sprintf("cs-%d", minute-dayStarts)})
			put(change{List: "coldstarts", Event: "put", Item: map[string]any{"id": id, "function": fmt.Sprintf("default/model-%02d", minute%dayModels), "request": fmt.Sprintf("request-%d", second), "began": at(second), "node": "node-0", "state": "READY", "total": 2, "bytes": 1 << 30, "tier": "NVME_CACHED", "phases": []any{
				map[string]any{"phase": "queue", "start": 0, "duration": 0.1}, map[string]any{"phase": "load", "start": 0.1, "duration": 1.9},
			}}})
		}
		put(change{List: "replicas", Event: "put", Item: replica(minute, second)})
		if second%10 == 0 {
			put(change{List: "events", Event: "put", Item: map[string]any{"seq": second, "at": at(second), "kind": "started", "function": "default/model-00", "node": "node-0", "message": fmt.Sprintf("start %d", second)}})
		}
	}
	b := openBlank(t)
	b.do(chromedp.Navigate(address + path))
	b.sees("live")
	if strings.Contains(path, "/models/") {
		b.press("[role=tab]", "Events")
	}
	var uses [3]memoryUse
	second := 0
	for i, until := range []int{day / 100, day / 10, day} {
		for second < until {
			first, end := second+1, min(second+1000, until)
			write(func(put func(change)) {
				for s := first; s <= end; s++ {
					update(put, s)
				}
			})
			second = end
		}
		b.until("the newest update is shown", shows(until))
		uses[i] = b.memoryUse()
	}
	b.wantNoFaults()
	return uses
}

// dayPages are pages that may be open for a day, with what each shows after an update.
var dayPages = []struct {
	name, path string
	shows      func(second int) string
}{
	{"Now", "/ui/", func(second int) string {
		return fmt.Sprintf("[...document.querySelectorAll('.figures dd')].some(e => e.textContent.trim() === '%d requests')", second)
	}},
	{"a model's events", "/ui/models/default/model-00", func(second int) string {
		return fmt.Sprintf("document.body.innerText.includes('%d at engines') && "+
			"document.querySelector('.events').textContent.includes('start %d')", second, second/10*10)
	}},
	{"Cold starts", "/ui/cold-starts", func(second int) string {
		return fmt.Sprintf(`document.querySelector('a[href$="cs-%d"]') !== null`, dayModels+second/60)
	}},
}

// TestDay: a page that has read the updates of a day has the memory that it had after a tenth
// of them.
func TestDay(t *testing.T) {
	p := start(t, nil)
	for _, d := range dayPages {
		t.Run(d.name, func(t *testing.T) {
			uses := dayOf(t, p, d.path, d.shows)
			t.Logf("%+v", uses)
			if tenth, end := uses[1], uses[2]; end.bytes > 1.2*tenth.bytes || float64(end.nodes) > 1.2*float64(tenth.nodes) {
				t.Errorf("%.0f bytes and %d nodes after a tenth of the day, %.0f and %d after all of it", tenth.bytes, tenth.nodes, end.bytes,
					end.nodes)
			}
		})
	}
}
