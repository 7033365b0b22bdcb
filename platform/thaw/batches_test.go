package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"mime/multipart"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions"
)

// batchLines are n requests over the models in turn. Their ids begin with a prefix.
func batchLines(prefix string, n int, models ...string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"%s-%d","method":"POST","url":"/v1/chat/completions","body":{"model":"%s","max_tokens":4,"messages":[{"role":"user","content":"What is thaw? %d"}]}}`+"\n", prefix, i, models[i%len(models)], i)
	}
	return b.String()
}

// upload sends a file and returns its id.
func (p *platform) upload(content string, header ...string) string {
	p.t.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	w.WriteField("purpose", "batch")
	part, err := w.CreateFormFile("file", "lines.jsonl")
	if err == nil {
		_, err = io.WriteString(part, content)
	}
	if err != nil || w.Close() != nil {
		p.t.Fatal(err)
	}
	r := p.do("POST", "/v1/files", form.String(), append(header, "Content-Type", w.FormDataContentType())...)
	var f struct{ ID string }
	if err := json.Unmarshal([]byte(r.body), &f); r.status != 200 || err != nil {
		p.t.Fatalf("upload: %d %s %v", r.status, r.body, r.err)
	}
	return f.ID
}

// batchOf is what a test reads of a batch.
type batchOf struct {
	ID, Status   string
	OutputFileID *string `json:"output_file_id"`
	ErrorFileID  *string `json:"error_file_id"`
	Counts       struct {
		Total, Completed, Failed int
	} `json:"request_counts"`
	Usage struct {
		Total int `json:"total_tokens"`
	}
}

func (p *platform) batch(method, path, body string, header ...string) (b batchOf) {
	p.t.Helper()
	r := p.do(method, path, body, header...)
	if err := json.Unmarshal([]byte(r.body), &b); r.status != 200 || err != nil {
		p.t.Fatalf("%s %s: %d %s %v", method, path, r.status, r.body, r.err)
	}
	return b
}

// createBatch makes a batch of chats.
func (p *platform) createBatch(file string) batchOf {
	p.t.Helper()
	return p.batch("POST", "/v1/batches", `{"input_file_id":"`+file+`","endpoint":"/v1/chat/completions","completion_window":"24h","metadata":{"of":"a test"}}`)
}

// ended waits for a batch's end.
func (p *platform) ended(id string) (b batchOf) {
	p.t.Helper()
	p.eventually("the batch ends", func() bool {
		b = p.batch("GET", "/v1/batches/"+id, "")
		return b.Status == "completed" || b.Status == "failed" || b.Status == "cancelled" || b.Status == "expired"
	})
	return b
}

// entries are the lines of a file by their custom_id.
func (p *platform) entries(file *string) map[string]batchEntry {
	p.t.Helper()
	all := map[string]batchEntry{}
	if file == nil {
		return all
	}
	r := p.do("GET", "/v1/files/"+*file+"/content", "")
	for line := range strings.Lines(r.body) {
		var e batchEntry
		if err := json.Unmarshal([]byte(line), &e); r.status != 200 || err != nil {
			p.t.Fatalf("%d %q %v", r.status, line, err)
		}
		if _, twice := all[e.CustomID]; twice {
			p.t.Errorf("%s is there twice", e.CustomID)
		}
		all[e.CustomID] = e
	}
	return all
}

type batchEntry struct {
	CustomID string `json:"custom_id"`
	Response *struct {
		Status    int    `json:"status_code"`
		RequestID string `json:"request_id"`
		Body      json.RawMessage
	}
	Error *struct{ Code, Message string }
}

// TestBatch: 200 lines over two models, of which each is loaded once, are each in the output
// once. A file may be larger than a body.
func TestBatch(t *testing.T) {
	p := start(t, map[string]string{"a.yaml": tiny(t, "a", ""), "b.yaml": tiny(t, "b", "")}, "--max-body", "65536")
	file := p.upload(batchLines("line", 200, "a", "b") + strings.Repeat("\n", 100_000))
	made := p.createBatch(file)
	if made.Status != "validating" {
		t.Errorf("%+v", made)
	}
	b := p.ended(made.ID)
	if b.Status != "completed" || b.Counts.Total != 200 || b.Counts.Completed != 200 || b.ErrorFileID != nil || b.Usage.Total < 400 {
		t.Fatalf("%+v", b)
	}
	out := p.entries(b.OutputFileID)
	for i := range 200 {
		e, ok := out[fmt.Sprintf("line-%d", i)]
		if !ok || e.Response == nil || e.Response.Status != 200 || e.Response.RequestID == "" || e.Error != nil || !strings.Contains(string(e.Response.Body), fmt.Sprintf(`"model":%q`, "ab"[i%2:i%2+1])) {
			t.Fatalf("line %d: %+v", i, e)
		}
	}
	metrics := p.do("GET", "/metrics", "").body
	for _, want := range []string{
		`thaw_batch_lines_total{result="completed",team="default"} 200`,
		`thaw_cold_start_seconds_count{model="a",result="ready",team="default"} 1`,
		`thaw_cold_start_seconds_count{model="b",result="ready",team="default"} 1`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s", want)
		}
	}
	if r := p.do("DELETE", "/v1/files/"+file, ""); r.status != 200 || r.body != `{"id":"`+file+`","object":"file","deleted":true}` {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := p.do("GET", "/v1/files/"+file+"/content", ""); r.status != 404 || r.failure().Code != "not_found" {
		t.Errorf("a deleted file: %d %s", r.status, r.body)
	}
	if r := p.do("POST", "/v1/batches/"+b.ID+"/cancel", ""); r.status != http.StatusConflict {
		t.Errorf("cancel of a batch that has ended: %d %s", r.status, r.body)
	}
}

// TestBatchServerKilled: the server and engines are killed while a batch runs. The next one
// goes on, and each line has its entry once and is charged once.
func TestBatchServerKilled(t *testing.T) {
	t.Parallel()
	cloud := newCloudAPI(t)
	p := spawn(t, map[string]string{
		"a.yaml": tiny(t, "a", "args: [--token-delay, 20ms]"), "b.yaml": tiny(t, "b", "args: [--token-delay, 20ms]"),
		"cloud.yaml": "apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: cloud}\nspec: {url: " + cloud.URL + "/v1, allow: internal, price: {input: 1000, output: 2000}}\n",
	})
	made := p.createBatch(p.upload(batchLines("line", 300, "a", "b") + batchLines("cloud", 100, "cloud")))
	for _, x := range []struct {
		done   int
		engine string // "": the server
	}{{1, ""}, {130, "a"}, {160, ""}, {270, "b"}, {300, ""}, {390, ""}} {
		p.eventually("lines have ended", func() bool { return p.batch("GET", "/v1/batches/"+made.ID, "").Counts.Completed >= x.done })
		if x.engine != "" {
			pid := 0
			p.eventually("the engine runs", func() bool { pid = p.engine(x.engine); return pid != 0 })
			signalPID(t, pid, syscall.SIGKILL)
			continue
		}
		p.kill()
		p.respawn()
	}
	b := p.ended(made.ID)
	out := p.entries(b.OutputFileID)
	if b.Status != "completed" || b.Counts.Completed != 400 || b.Counts.Failed != 0 || len(out) != 400 {
		t.Errorf("%+v, %d lines in the output", b, len(out))
	}
	p.kill()
	p.respawn()
	var teams struct {
		Items []struct {
			Spent float64 `json:"spent_today"`
		}
	}
	r := p.do("GET", "/api/v1/teams", "")
	if err := json.Unmarshal([]byte(r.body), &teams); err != nil || len(teams.Items) != 1 || math.Abs(teams.Items[0].Spent-0.9) > 1e-9 {
		t.Errorf("100 lines of 0.009 each: %s %v", r.body, err)
	}
}

// TestBatchKeys: a team's key sees the files and batches of its team, and a body is read only
// behind a right key.
func TestBatchKeys(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"a.yaml": tiny(t, "red/a", ""), "b.yaml": tiny(t, "blue/a", "")})
	key := func(team string) []string {
		var k struct{ Key, Secret string }
		r := p.do("POST", "/api/v1/keys", `{"team":"`+team+`"}`, "Authorization", p.admin())
		if err := json.Unmarshal([]byte(r.body), &k); err != nil || r.status >= 300 {
			t.Fatalf("%d %s %v", r.status, r.body, err)
		}
		return []string{"Authorization", "Bearer " + k.Key + k.Secret}
	}
	red, blue := key("red"), key("blue")
	file := p.upload(batchLines("line", 5, "a"), red...)
	b := p.batch("POST", "/v1/batches", `{"input_file_id":"`+file+`","endpoint":"/v1/chat/completions","completion_window":"1h"}`, red...)
	p.bearer = red[1]
	b = p.ended(b.ID)
	if out := p.entries(b.OutputFileID); b.Status != "completed" || len(out) != 5 {
		t.Errorf("%+v %v", b, out)
	}
	for _, path := range []string{"/v1/files/" + file, "/v1/files/" + file + "/content", "/v1/files/" + *b.OutputFileID + "/content", "/v1/batches/" + b.ID} {
		if r := p.do("GET", path, "", blue...); r.status != 404 {
			t.Errorf("%s for another team: %d %s", path, r.status, r.body)
		}
		if r := p.do("GET", path, "", "Authorization", "Bearer sk-thaw-none"); r.status != 401 {
			t.Errorf("%s without a right key: %d %s", path, r.status, r.body)
		}
	}
	for _, path := range []string{"/v1/files", "/v1/batches"} {
		if r := p.do("GET", path, "", blue...); !strings.Contains(r.body, `"data":[]`) {
			t.Errorf("%s for another team: %s", path, r.body)
		}
	}
	if r := p.do("POST", "/v1/files", strings.Repeat("x", 1<<20), "Authorization", "Bearer sk-thaw-none"); r.err == nil && r.status != 401 {
		t.Errorf("an upload without a right key: %d %s", r.status, r.body)
	}
}

// TestBatchOfAllKinds: the lines of a batch may name a Router, a Remote, a Composition and an
// adapter's model, and its endpoint may be that of completions.
func TestBatchOfAllKinds(t *testing.T) {
	t.Parallel()
	cloud := newCloudAPI(t)
	p := start(t, map[string]string{
		"a.yaml": tiny(t, "a", ""), "b.yaml": tiny(t, "b", ""),
		"cloud.yaml": "apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: cloud}\nspec: {url: " + cloud.URL + "/v1, model: vendor-large, allow: internal, price: {input: 1, output: 2}}\n",
		"auto.yaml":  "apiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: auto}\nspec:\n  rules:\n    - {name: general, to: [a]}\n",
		"panel.yaml": "apiVersion: thaw.dev/v1\nkind: Composition\nmetadata: {name: panel}\nspec: {pattern: ensemble, members: [a, b], coordinator: a}\n",
	})
	b := p.ended(p.createBatch(p.upload(batchLines("line", 8, "auto", "cloud", "panel", "b"))).ID)
	out := p.entries(b.OutputFileID)
	if b.Status != "completed" || b.Counts.Completed != 8 || len(out) != 8 {
		t.Fatalf("%+v %v", b, p.entries(b.ErrorFileID))
	}
	for i, want := range []string{`"model":"a"`, "from the cloud", `"model":"panel"`, `"model":"b"`} {
		if body := string(out[fmt.Sprintf("line-%d", i)].Response.Body); !strings.Contains(body, want) {
			t.Errorf("line %d: %s", i, body)
		}
	}
	if n := len(cloud.seen()); n != 2 {
		t.Errorf("the Remote was asked %d times", n)
	}
	text := `{"custom_id":"t","method":"POST","url":"/v1/completions","body":{"model":"a","prompt":"thaw","max_tokens":3}}`
	b = p.batch("POST", "/v1/batches", `{"input_file_id":"`+p.upload(text)+`","endpoint":"/v1/completions","completion_window":"1h"}`)
	if b = p.ended(b.ID); b.Counts.Completed != 1 ||
		!strings.Contains(string(p.entries(b.OutputFileID)["t"].Response.Body), "text_completion") {
		t.Errorf("%+v", b)
	}
}

// TestBatchCancelled: a batch that is cancelled has an entry for each line soon, and what ran
// is over.
func TestBatchCancelled(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"a.yaml": tiny(t, "a", "args: [--token-delay, 100ms]")})
	lines := strings.ReplaceAll(batchLines("line", 100, "a"), `"max_tokens":4`, `"max_tokens":1000,"ignore_eos":true`)
	made := p.createBatch(p.upload(strings.Replace(lines, `"max_tokens":1000,"ignore_eos":true`, `"max_tokens":1`, 1)))
	p.eventually("lines run", func() bool {
		return p.batch("GET", "/v1/batches/"+made.ID, "").Counts.Completed == 1 && p.metric("thaw_active_requests{") > 0
	})
	if b := p.batch("POST", "/v1/batches/"+made.ID+"/cancel", ""); b.Status != "cancelling" && b.Status != "cancelled" {
		t.Errorf("%+v", b)
	}
	b := p.ended(made.ID)
	out, failed := p.entries(b.OutputFileID), p.entries(b.ErrorFileID)
	if b.Status != "cancelled" || len(out) != 1 || len(failed) != 99 || failed["line-50"].Error.Code != "batch_cancelled" {
		t.Errorf("%+v, %d and %d lines, %+v", b, len(out), len(failed), failed["line-50"].Error)
	}
	p.awaitNoRequests()
}

// Lines leave a quarter of each limit of their team to its other requests.
func TestSpareLines(t *testing.T) {
	for name, c := range map[string]struct {
		u    ratelimit.Usage
		want int
	}{
		"no limits":            {ratelimit.Usage{}, math.MaxInt},
		"8 at once, 1 runs":    {ratelimit.Usage{Limits: functions.Limits{Concurrent: 8}, Active: 1}, 5},
		"8 at once, all run":   {ratelimit.Usage{Limits: functions.Limits{Concurrent: 8}, Active: 6, Held: 2}, 0},
		"one at once":          {ratelimit.Usage{Limits: functions.Limits{Concurrent: 1}}, 1},
		"60 a minute, 20 left": {ratelimit.Usage{Limits: functions.Limits{RequestsPerMinute: 60}, Requests: 20}, 5},
		"tokens for others":    {ratelimit.Usage{Limits: functions.Limits{TokensPerMinute: 1000}, Tokens: 250}, 0},
		"tokens left":          {ratelimit.Usage{Limits: functions.Limits{TokensPerMinute: 1000}, Tokens: 251}, math.MaxInt},
	} {
		if got := spareLines(c.u); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestBatchOneGPU: on one GPU the lines of two models, of which one is loaded at a time, need
// one start of each.
func TestBatchOneGPU(t *testing.T) {
	const gpu = "resources: {gpus: 1}\n"
	p := start(t, map[string]string{"a.yaml": tiny(t, "a", gpu), "b.yaml": tiny(t, "b", gpu)}, "--gpus", "1")
	b := p.ended(p.createBatch(p.upload(batchLines("line", 100, "a", "b"))).ID)
	if b.Counts.Completed != 100 {
		t.Errorf("%+v", b)
	}
	metrics := p.do("GET", "/metrics", "").body
	for _, model := range []string{"a", "b"} {
		if want := `thaw_cold_start_seconds_count{model="` + model + `",result="ready",team="default"} 1`; !strings.Contains(metrics, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}
