package batches

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"mime/multipart"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/batches/store"
	"github.com/thaw-dev/thaw/activator/call"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/spend"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// world is a data path with one place for a model: another is loaded when the one that is
// there has no request.
type world struct {
	t    *testing.T
	load time.Duration // of a model
	line time.Duration // of an answer

	mu      sync.Mutex
	models  map[string]bool // that exist
	there   string          // the model that is loaded
	active  map[string]int
	waiting map[string]int
	most    map[string]int // requests of a model at once
	loads   []string
	asked   map[string]int // by the text of the line
	callers map[string]bool
	lastEnd map[string]time.Time
	extra   map[string]int // requests of another client that wait
	keys    map[string]bool
	ledger  *spend.Ledger // of the next server; each answer costs 1
	changed chan struct{} // closed when there is another model or less to do
	answers func(model, text string, try int) (status int, head, body string)
	fails   bool // answers are errors, which cost as much
}

func newWorld(t *testing.T, models ...string) *world {
	w := &world{
		t: t, load: 10 * time.Second, line: time.Second, models: map[string]bool{}, active: map[string]int{}, waiting: map[string]int{},
		most:  map[string]int{},
		asked: map[string]int{}, callers: map[string]bool{}, lastEnd: map[string]time.Time{}, extra: map[string]int{}, keys: map[string]bool{"k1": true, "k2": true}, changed: make(chan struct{}),
	}
	for _, m := range models {
		w.models[m] = true
	}
	return w
}

func (w *world) change() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// loaded is the models that were loaded, in order.
func (w *world) loaded() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.loads)
}

// mostOf is how many lines of a model ran at once.
func (w *world) mostOf(model string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.most[model]
}

// enter waits for a place for the model, and loads it.
func (w *world) enter(ctx *httpserver.Context, model string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting[model]++
	defer func() { w.waiting[model]-- }()
	gone := make(chan struct{})
	defer ctx.AfterFunc(func() { close(gone) })()
	for w.there != model {
		busy := w.there != "" && (w.active[w.there] > 0 || w.there == "loading")
		if !busy {
			w.there = "loading"
			w.loads = append(w.loads, model)
			w.mu.Unlock()
			<-time.After(w.load)
			w.mu.Lock()
			w.there = model
			w.change()
			continue
		}
		changed := w.changed
		w.mu.Unlock()
		select {
		case <-changed:
		case <-gone:
			w.mu.Lock()
			return false
		}
		w.mu.Lock()
	}
	w.active[model]++
	w.most[model] = max(w.most[model], w.active[model])
	return true
}

func (w *world) serve(req *httpserver.Request, res *httpserver.Response) {
	var body struct {
		Model    string
		Messages []struct{ Content string }
	}
	if err := json.Unmarshal(req.Body, &body); err != nil {
		w.t.Errorf("%s: %v", req.Body, err)
	}
	c := call.Of(req)
	text := body.Messages[0].Content
	w.mu.Lock()
	w.callers[strings.TrimSpace(fmt.Sprintf("%s %s %v %s %s", c.Team, c.KeyID, c.Admin, req.Header("thaw-priority"),
		req.Header("thaw-data")))] = true
	w.asked[text]++
	try := w.asked[text]
	w.mu.Unlock()
	if w.answers != nil {
		if status, head, b := w.answers(body.Model, text, try); status > 0 {
			res.Status, res.Body = status, []byte(b)
			name, value, _ := strings.Cut(head, ": ")
			res.Set(name, value)
			return
		}
	}
	if w.ledger != nil {
		hold, refusal := w.ledger.Reserve(time.Now(), 1, spend.Budget{Account: "remote r"}, spend.Budget{Account: "team default"})
		if refusal != nil {
			w.t.Error(refusal)
		}
		defer func() {
			price := 0.0
			if res.Body != nil {
				price = 1
			}
			c.Entry.Settle(hold, price, time.Now())
		}()
	}
	ctx := req.Context()
	if !w.enter(ctx, body.Model) {
		res.Status = httpserver.StatusClientLeft
		return
	}
	gone := make(chan struct{})
	stop := ctx.AfterFunc(func() { close(gone) })
	select {
	case <-time.After(w.line):
		res.Body = []byte(`{"id":"c","model":"` + body.Model + `",` + "\n" + `"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`)
		res.Set("x-request-id", "r")
		if w.fails {
			res.Status, res.Body = 400, []byte(`{"error":{"message":"no","type":"invalid_request_error","code":"content_filter"}}`)
		}
	case <-gone:
		res.Status = httpserver.StatusClientLeft
	}
	stop()
	w.mu.Lock()
	w.active[body.Model]--
	w.lastEnd[body.Model] = time.Now()
	w.change()
	w.mu.Unlock()
}

func (w *world) describe(id auth.Identity, model string) ([]byte, *openai.Error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.models[model] {
		return nil, openai.New(openai.ModelNotFound, "The model `"+model+"` does not exist or you do not have access to it.")
	}
	value := "unloaded"
	if w.there == model {
		value = "loaded"
	}
	return []byte(`{"id":"` + model + `","owned_by":"default","status":{"value":"` + value + `"}}`), nil
}

func (w *world) demand(yield func(Demand) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for m := range w.models {
		yield(Demand{Name: functions.Name{Team: "default", Name: m}, GPUs: 1, Active: w.active[m], Queued: w.waiting[m] + w.extra[m],
			LastEnd: w.lastEnd[m]})
	}
}

// caller reads the team and the key from Authorization: Bearer KEY/TEAM.
func caller(header func(string) string) (auth.Identity, *openai.Error) {
	key, team, ok := strings.Cut(strings.TrimPrefix(header("Authorization"), "Bearer "), "/")
	if !ok {
		return auth.Identity{}, openai.New(openai.InvalidAPIKey, "")
	}
	return auth.Identity{KeyID: key, Team: team}, nil
}

// rig is a server on a world.
type rig struct {
	*Server
	t   *testing.T
	dir string
	end func() // ends Run
}

// withDefaults sets what a test leaves out to what has no effect.
func withDefaults(o Options) Options {
	if o.Ledger == nil {
		o.Ledger, _ = spend.Open("")
	}
	if o.Spare == nil {
		o.Spare = func(string) int { return math.MaxInt }
	}
	o.MaxLine, o.Log, o.Now = 32<<20, slog.New(slog.DiscardHandler), time.Now
	o.Count = func(string, float64, ...string) {}
	return o
}

// open opens a server and runs it until end, or the end of the test.
func (w *world) open(dir string, o Options) *rig {
	w.t.Helper()
	o.Ledger = w.ledger
	o.Data, o.Serve, o.Describe, o.Caller, o.Demand = dir, w.serve, w.describe, caller, w.demand
	if o.GPUs == nil {
		o.GPUs = func() int { return 1 }
	}
	o.HasKey = func(id string) bool { w.mu.Lock(); defer w.mu.Unlock(); return w.keys[id] }
	s, err := Open(withDefaults(o))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx); err != nil {
			w.t.Error(err)
		}
	}()
	r := &rig{Server: s, t: w.t, dir: dir}
	r.end = sync.OnceFunc(func() { cancel(); <-done })
	return r
}

type answer struct {
	status int
	body   string
	header func(string) string
}

func (a answer) code() string {
	var b struct{ Error struct{ Code string } }
	json.Unmarshal([]byte(a.body), &b)
	return b.Error.Code
}

// do sends a request as the front does: an upload's body to its receiver first.
func (r *rig) do(method, target, body string, fields ...httpserver.Field) answer {
	r.t.Helper()
	path, query, _ := strings.Cut(target, "?")
	all := append(fields, httpserver.Field{Name: "Authorization", Value: "Bearer k1/default"})
	req := httpserver.NewRequest(nil, method, path, all, []byte(body), &httpserver.Context{}, func() bool { return false })
	req.Query = query
	var res httpserver.Response
	if x, _ := r.Receive(req); x != nil {
		req.Body, req.Received = nil, x
		if err := x.Receive(strings.NewReader(body)); err != nil {
			e, ok := err.(*openai.Error)
			if !ok {
				r.t.Fatal(err)
			}
			x.Close()
			res.Refuse(e)
			return answer{res.Status, string(res.Body), nil}
		}
	}
	r.Serve(req, &res)
	if req.Received != nil {
		req.Received.Close()
	}
	if res.Stream != nil {
		b, err := io.ReadAll(res.Stream)
		if err != nil || int64(len(b)) != res.Length {
			r.t.Errorf("%d bytes of %d, %v", len(b), res.Length, err)
		}
		res.Stream.Close()
		res.Body = b
	}
	if res.Status == 0 {
		res.Status = 200
	}
	return answer{res.Status, string(res.Body), func(name string) string {
		for _, f := range res.Fields {
			if strings.EqualFold(f.Name, name) {
				return f.Value
			}
		}
		return ""
	}}
}

// form is an upload's body, of pairs of names and values; the part file has a name.
func form(parts ...string) (body string, kind httpserver.Field) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(parts); i += 2 {
		if parts[i] == "file" {
			p, _ := w.CreateFormFile("file", "in.jsonl")
			io.WriteString(p, parts[i+1])
		} else {
			w.WriteField(parts[i], parts[i+1])
		}
	}
	w.Close()
	return b.String(), httpserver.Field{Name: "Content-Type", Value: w.FormDataContentType()}
}

func (r *rig) upload(content string, fields ...httpserver.Field) string {
	r.t.Helper()
	body, kind := form("purpose", "batch", "file", content)
	a := r.do("POST", "/v1/files", body, append(fields, kind)...)
	return r.id(a)
}

func (r *rig) id(a answer) string {
	r.t.Helper()
	var b struct{ ID string }
	if err := json.Unmarshal([]byte(a.body), &b); a.status != 200 || err != nil {
		r.t.Fatalf("%d %s %v", a.status, a.body, err)
	}
	return b.ID
}

// lines are n requests over models in turn; the text of each is its custom_id.
func lines(n int, models ...string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(line(fmt.Sprintf("l%d", i), models[i%len(models)]))
	}
	return b.String()
}

func line(id, model string) string {
	return fmt.Sprintf(`{"custom_id":%q,"method":"POST","url":"/v1/chat/completions","body":{"model":%q,"messages":[{"role":"user","content":%q}]}}`+"\n", id, model, id)
}

// create makes a batch of a new file.
func (r *rig) create(content, window string, fields ...httpserver.Field) string {
	r.t.Helper()
	return r.id(r.do("POST", "/v1/batches", `{"input_file_id":"`+r.upload(content)+`","endpoint":"/v1/chat/completions","completion_window":"`+window+`"}`, fields...))
}

func (r *rig) batch(id string) (b store.Batch) {
	r.t.Helper()
	a := r.do("GET", "/v1/batches/"+id, "")
	if err := json.Unmarshal([]byte(a.body), &b); a.status != 200 || err != nil {
		r.t.Fatalf("%d %s %v", a.status, a.body, err)
	}
	return b
}

// wait lets time pass until the batch has ended.
func (r *rig) wait(id string) store.Batch {
	r.t.Helper()
	for range 100_000 {
		if b := r.batch(id); b.Ended() {
			return b
		}
		<-time.After(time.Second)
		synctest.Wait()
	}
	r.t.Fatal("the batch never ended")
	return store.Batch{}
}

// read is what a batch's files say of each line: a status, or the code of an error.
func (r *rig) read(b store.Batch) map[string]string {
	r.t.Helper()
	all := map[string]string{}
	for i, file := range []*string{b.OutputFileID, b.ErrorFileID} {
		if file == nil {
			continue
		}
		a := r.do("GET", "/v1/files/"+*file+"/content", "")
		n := 0
		for l := range strings.Lines(a.body) {
			var e entry
			if err := json.Unmarshal([]byte(l), &e); err != nil || a.status != 200 || !strings.HasSuffix(l, "\n") ||
				!strings.HasPrefix(e.ID, "batch_req_") {
				r.t.Fatalf("%d %q: %v", a.status, l, err)
			}
			n++
			if _, twice := all[e.CustomID]; twice {
				r.t.Errorf("%s has more than one entry", e.CustomID)
			}
			switch {
			case e.Error != nil && e.Response == nil && i == 1:
				all[e.CustomID] = e.Error.Code
			case e.Error == nil && e.Response != nil && (e.Response.StatusCode == 200) == (i == 0):
				all[e.CustomID] = fmt.Sprint(e.Response.StatusCode)
			default:
				r.t.Errorf("file %d: %s", i, l)
			}
		}
		if want := []int{b.RequestCounts.Completed, b.RequestCounts.Failed}[i]; n != want {
			r.t.Errorf("file %d has %d lines, and the batch counts %d", i, n, want)
		}
	}
	if len(all) != b.RequestCounts.Total {
		r.t.Errorf("%d of %d lines have an entry", len(all), b.RequestCounts.Total)
	}
	return all
}

// counted is how many lines have each outcome.
func counted(all map[string]string) map[string]int {
	n := map[string]int{}
	for _, v := range all {
		n[v]++
	}
	return n
}

// copyFolder is the folder as a process that was killed leaves it.
func copyFolder(t *testing.T, from string) string {
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}
