package grafana_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// definitions are the files that the server has; ADDRESS is its own, MODEL the shipped model.
var definitions = map[string]string{
	"tiny":   "kind: Model\nmetadata: {name: tiny}\nspec: {source: MODEL, engine: ember, resources: {memory: 64Mi}, cache: {exact: {ttl: 10m}}}",
	"small":  "kind: Model\nmetadata: {name: small}\nspec: {source: MODEL, engine: ember, resources: {memory: 64Mi}}",
	"broken": "kind: Model\nmetadata: {name: broken}\nspec: {source: ./absent, engine: ember}",
	"cloud":  "kind: Remote\nmetadata: {name: cloud}\nspec: {url: \"http://ADDRESS/v1\", model: small, allow: internal, price: {input: 100, output: 100}, limits: {spendPerDay: 5}}",
	"away":   "kind: Remote\nmetadata: {name: away}\nspec: {url: \"http://127.0.0.1:1/v1\", model: small, allow: internal}",
	"team":   "kind: Team\nmetadata: {name: default}\nspec: {limits: {spendPerDay: 5}}",
	"auto":   "kind: Router\nmetadata: {name: auto}\nspec: {rules: [{name: all, to: [small, tiny]}]}",
	"panel":  "kind: Composition\nmetadata: {name: panel}\nspec: {pattern: ensemble, members: [small, tiny], coordinator: small, budget: {calls: 8, time: 1m}}",
}

// server is a running thaw serve.
type server struct {
	t     *testing.T
	url   string
	token string // the administrator's
}

// build builds the program once for a test.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "thaw")
	c := exec.Command("go", "build", "-trimpath", "-o", program, "./platform/thaw")
	c.Dir = "../.."
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// start starts thaw on a free port and ends it with the test.
func start(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	shipped, err := filepath.Abs("../../functions/shipped/tiny")
	if err != nil {
		t.Fatal(err)
	}
	functions, data := t.TempDir(), t.TempDir()
	for name, text := range definitions {
		text = "apiVersion: thaw.dev/v1\n" + strings.NewReplacer("ADDRESS", address, "MODEL", shipped).Replace(text) + "\n"
		if err := os.WriteFile(filepath.Join(functions, name+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	c := exec.Command(build(t), "serve", "--addr", address, "--data", data, "--functions", functions, "--warm", "off", "--drain", "1s")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Signal(syscall.SIGTERM)
		c.Wait()
		if t.Failed() {
			t.Logf("thaw serve: %s", log.Bytes())
		}
	})
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "thaw serves on") {
		t.Fatalf("%q %v", line, err)
	}
	go io.Copy(io.Discard, r)
	token, err := os.ReadFile(filepath.Join(data, "admin-token"))
	if err != nil {
		t.Fatal(err)
	}
	return &server{t: t, url: "http://" + address, token: strings.TrimSpace(string(token))}
}

var client = &http.Client{Timeout: time.Minute}

// do sends a request and returns what is answered, whose status must be want.
func (s *server) do(method, path, contentType, body string, want int) (text []byte, gotType string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	if strings.HasPrefix(path, "/api/") {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	answer, err := client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err = io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != want {
		s.t.Fatalf("%s %s %s: %d %v\n%s", method, path, body, answer.StatusCode, err, text)
	}
	return text, answer.Header.Get("Content-Type")
}

// ask asks a model something.
func (s *server) ask(name string, stream bool, want int) {
	s.t.Helper()
	options := ""
	if stream {
		options = `"stream":true,"stream_options":{"include_usage":true},`
	}
	body := fmt.Sprintf(`{"model":%q,%s"max_tokens":16,"temperature":0,"messages":[{"role":"user","content":"What is thaw?"}]}`, name, options)
	s.do("POST", "/v1/chat/completions", "application/json", body, want)
}

// runBatch uploads a batch of one line and waits until it has ended.
func (s *server) runBatch() {
	s.t.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	w.WriteField("purpose", "batch")
	f, err := w.CreateFormFile("file", "batch.jsonl")
	if err != nil {
		s.t.Fatal(err)
	}
	io.WriteString(f, `{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"small","max_tokens":4,"messages":[{"role":"user","content":"Hi"}]}}`+"\n")
	w.Close()
	var made struct{ ID, Status string }
	text, _ := s.do("POST", "/v1/files", w.FormDataContentType(), form.String(), 200)
	if err := json.Unmarshal(text, &made); err != nil {
		s.t.Fatal(err)
	}
	text, _ = s.do("POST", "/v1/batches", "application/json", fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":"24h"}`, made.ID), 200)
	if err := json.Unmarshal(text, &made); err != nil {
		s.t.Fatal(err)
	}
	for began := time.Now(); made.Status != "completed"; <-time.After(20 * time.Millisecond) {
		text, _ = s.do("GET", "/v1/batches/"+made.ID, "", "", 200)
		if err := json.Unmarshal(text, &made); err != nil || time.Since(began) > time.Minute {
			s.t.Fatalf("%v %s", err, text)
		}
	}
}

// stop stops the replica of a model and waits until it has ended.
func (s *server) stop(name string) {
	s.t.Helper()
	s.do("POST", "/api/v1/functions/default/"+name+"/stop", "", "", 202)
	cold := fmt.Sprintf("thaw_model_state{model=%q,state=\"cold\",team=\"default\"} 1\n", name)
	for began := time.Now(); ; <-time.After(20 * time.Millisecond) {
		text, _ := s.do("GET", "/metrics", "", "", 200)
		if strings.Contains(string(text), cold) {
			return
		}
		if time.Since(began) > time.Minute {
			s.t.Fatalf("%s does not stop", name)
		}
	}
}

// play has thaw serve requests of every kind, twice, and adds what /metrics has before,
// between and after to the store, two minutes apart. It returns how long that is.
func play(t *testing.T, into *store, begin time.Time) time.Duration {
	t.Helper()
	s := start(t)
	const step = 2 * time.Minute
	scrape := func(at time.Duration) {
		text, contentType := s.do("GET", "/metrics", "", "", 200)
		into.scrape(t, text, contentType, begin.Add(at))
	}
	scrape(0)
	for round := range 2 {
		s.ask("small", true, 200)
		s.ask("small", true, 200)
		for _, name := range []string{"tiny", "small", "cloud", "auto", "panel"} {
			s.ask(name, false, 200)
		}
		for range 3 {
			s.ask("away", false, 503)
		}
		s.ask("broken", false, 503)
		s.runBatch()
		s.stop("small")
		scrape(time.Duration(round+1) * step)
	}
	return 2 * step
}

// checkFigures looks at numbers that a board shows of this run.
func (s *store) checkFigures(t *testing.T, end time.Time) {
	t.Helper()
	for expression, least := range map[string]float64{
		`sum(increase(thaw_cold_start_seconds_count{result="ready",model="small"}[3m]))`:      1,
		`sum(increase(thaw_requests_total{code="200"}[3m]))`:                                  6,
		`sum(increase(thaw_composition_calls_total{model="panel"}[3m]))`:                      2,
		`sum(increase(thaw_batch_lines_total{result="completed"}[3m]))`:                       1,
		`sum(increase(thaw_answer_cache_requests_total{result="exact"}[3m]))`:                 1,
		`sum(increase(thaw_route_decisions_total{router="default/auto",target="small"}[3m]))`: 1,
		`sum(increase(thaw_evictions_total[3m]))`:                                             1,
		`sum(thaw_remote_spent_today{model="cloud"}) * 1e6`:                                   1,
		`sum(thaw_remote_spend_limit{model="cloud"})`:                                         5,
		`sum(thaw_team_spent_today{team="default"}) * 1e6`:                                    1,
		`sum(thaw_team_spend_limit{team="default"})`:                                          5,
		`thaw_remote_circuit{model="away",state="open"}`:                                      1,
	} {
		got := s.query(t, expression, end)
		if len(got) != 1 || math.IsNaN(got[0].F) || got[0].F < least-1e-9 {
			t.Errorf("%s is %v, want %g at least", expression, got, least)
		}
	}
}
