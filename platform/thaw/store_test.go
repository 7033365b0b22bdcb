package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/platform/enroll"
	"github.com/thaw-dev/thaw/testkit/azuretest"
)

// eachTinyFile calls put with each file of the tiny model, named below the folder tiny.
func eachTinyFile(t *testing.T, put func(name string, body []byte)) {
	t.Helper()
	files := os.DirFS(tinyDir(t))
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(files, path)
		put("tiny/"+path, b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// startBlobServer starts a blob server with the tiny model, and sets the environment through which
// the program finds it.
func startBlobServer(t *testing.T) *azuretest.Server {
	t.Helper()
	blobs := azuretest.New(t)
	eachTinyFile(t, blobs.Put)
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", blobs.Getenv("AZURE_STORAGE_CONNECTION_STRING"))
	return blobs
}

// verb runs the program in this process.
func verb(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(""), &o, &e)
	return o.String(), e.String(), code
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// TestPullWithoutServer: thaw pull in an init container. It stages a folder with the
// files' own names, resumes after a kill, and has an exit code for each error.
func TestPullWithoutServer(t *testing.T) {
	blobs := startBlobServer(t)
	data := filepath.Join(t.TempDir(), "data")
	source := azuretest.Location("tiny")

	// It is killed while its largest file is being downloaded.
	stuck := make(chan struct{})
	defer close(stuck)
	reached := make(chan struct{}, 100)
	blobs.Fault(func(w http.ResponseWriter, r *http.Request, n int) bool {
		if n == 0 || !strings.HasSuffix(r.URL.Path, ".safetensors") {
			return false
		}
		reached <- struct{}{}
		select {
		case <-stuck:
		case <-r.Context().Done():
		}
		return true
	})
	c := exec.Command(os.Args[0], "pull", source, "--data", data)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-reached:
	case <-time.After(patience):
		t.Error("it asks for nothing")
	}
	c.Process.Kill()
	c.Wait()
	if list, _ := os.ReadDir(filepath.Join(data, "store", "checkpoints")); len(list) != 0 {
		t.Fatalf("killed in the middle, and %d checkpoints are there", len(list))
	}
	blobs.Fault(nil)

	// What came of it is seen, and can be removed; without that the next pull goes on from it.
	unfinished := func(data string) bool {
		out, _, _ := verb(t, "cache", "ls", "--data", data)
		return strings.Contains(out, "unfinished") && strings.Contains(out, source)
	}
	copied := filepath.Join(t.TempDir(), "copied")
	if err := os.CopyFS(copied, os.DirFS(data)); err != nil || !unfinished(data) || !unfinished(copied) {
		t.Errorf("an unfinished download is not listed (%v)", err)
	}
	out, errs, code := verb(t, "cache", "rm", "tiny", "--data", copied)
	if code != 0 || !strings.Contains(out, "removed") || unfinished(copied) {
		t.Errorf("cache rm of an unfinished download: %d %s%s", code, out, errs)
	}

	out, errs, code = verb(t, "pull", source, "--data", data)
	folder := lastLine(out)
	if code != 0 {
		t.Fatalf("%d %s%s", code, out, errs)
	}
	for _, name := range []string{"config.json", "model.safetensors"} {
		got, err := os.ReadFile(filepath.Join(folder, name))
		want, _ := os.ReadFile(filepath.Join(tinyDir(t), name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v, or other bytes", name, err)
		}
	}

	// Again: the checkpoint is present, so the source is listed and no file is read.
	before := len(blobs.Gets())
	out, _, code = verb(t, "pull", source, "--data", data, "-o", "json", "--pin")
	var last struct{ State, Path string }
	if err := json.Unmarshal([]byte(lastLine(out)), &last); err != nil || code != 0 || last.State != "ready" || last.Path != folder ||
		len(blobs.Gets()) != before {
		t.Errorf("%d %s (%d ranges were read)", code, out, len(blobs.Gets())-before)
	}

	if unfinished(data) {
		t.Error("finished, and listed as unfinished")
	}
	if out, _, _ = verb(t, "cache", "ls", "--data", data); !strings.Contains(out, "pinned") || !strings.Contains(out, source) {
		t.Errorf("cache ls says %s", out)
	}
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"pull " + azuretest.Location("none") + " --data " + data, 3, "nothing below"},
		{"pull az://otheraccount1/weights/x --timeout 1ms --data " + data, 5, "not done within"},
		{"pull nosuch --data " + data, 3, "--functions DIR"},
		{"pull nosuch://x --data " + data, 2, "thaw cannot read nosuch:// sources"},
		{"pull az://X/y --data " + data, 2, ""},
		{"pull " + source + "?sig=secret --data " + data, 2, "a query"},
		{"pull " + source + " --digest sha256:" + strings.Repeat("0", 64) + " --data " + filepath.Join(t.TempDir(), "d"), 1, "is demanded"},
		{"pull " + source + " --digest md5:1 --data " + data, 2, "is not a digest"},
		{"pull " + source + " --store 1Ki --data " + filepath.Join(t.TempDir(), "d"), 1, "no room"},
		{"pull " + source + " --data /dev/null/x", 1, "store"},
		{"cache rm none --data " + data, 3, "no checkpoint"},
	} {
		out, errs, code := verb(t, strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(errs, tt.says) || out != "" || strings.Contains(errs, "secret") {
			t.Errorf("thaw %s: exit %d\n%s%s", tt.args, code, out, errs)
		}
	}

	// Verify finds a corrupt file, and the next pull repairs it.
	weights := filepath.Join(folder, "model.safetensors")
	if err := os.Chmod(weights, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(weights, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("rot"), 100_000); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, errs, code := verb(t, "cache", "verify", "--all", "--data", data); code != 1 || !strings.Contains(errs, "model.safetensors") {
		t.Errorf("rot: exit %d %s", code, errs)
	}
	if out, errs, code := verb(t, "pull", source, "--data", data); code != 0 || lastLine(out) != folder {
		t.Errorf("after the rot: %d %s%s", code, out, errs)
	}
	if out, _, code := verb(t, "cache", "rm", "tiny", "--data", data); code != 0 || !strings.Contains(out, "removed") {
		t.Errorf("%d %s", code, out)
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("removed, and its folder is there")
	}
}

// TestPrefetch: weights are staged on the requested node through the agent's API, the
// cache verbs cover all nodes, and a checkpoint in use is not removed.
func TestPrefetch(t *testing.T) {
	startBlobServer(t)
	p := start(t, map[string]string{"m.yaml": modelFile("m", "  source: "+azuretest.Location("tiny")+"\n  engine: ember\n"), "here.yaml": tiny(t, "here", "")})
	p.agent("second")
	p.eventually("both nodes", func() bool { return len(p.items("/api/v1/nodes")) == 2 })
	thaw := func(args ...string) (string, string, int) {
		return verb(t, append(args, "--server", p.url, "--key", strings.TrimPrefix(p.admin(), "Bearer "))...)
	}
	out, errs, code := thaw("prefetch", "m", "--node", "second")
	folder := lastLine(out)
	if code != 0 || !strings.Contains(folder, p.data+"-second") {
		t.Fatalf("prefetch: %d %s%s", code, out, errs)
	}
	if _, err := os.Stat(filepath.Join(folder, "config.json")); err != nil {
		t.Error(err)
	}
	if out, errs, code = thaw("pull", "here"); code != 0 || lastLine(out) != tinyDir(t) {
		t.Errorf("a folder of this machine: %d %s%s", code, out, errs)
	}
	if out, errs, code = thaw("cache", "ls"); code != 0 || !strings.Contains(out, "second") || strings.Count(out, "\n") != 2 {
		t.Errorf("cache ls: %d %s%s", code, out, errs)
	}
	if out, errs, code = thaw("cache", "pin", "tiny"); code != 0 || !strings.Contains(out, "pinned on second") {
		t.Errorf("cache pin: %d %s%s", code, out, errs)
	}
	if out, errs, code = thaw("cache", "verify", "tiny", "--node", "second"); code != 0 || !strings.Contains(out, "as they came") {
		t.Errorf("cache verify: %d %s%s", code, out, errs)
	}
	// While it is served it cannot be removed. (Both stores are on one disk, so which node
	// has the most free space is not defined.)
	here := ""
	for _, n := range p.items("/api/v1/nodes") {
		if name := fmt.Sprint(n["id"]); name != "second" {
			here = name
		}
	}
	if out, errs, code = thaw("prefetch", "m", "--node", here); code != 0 || !strings.Contains(lastLine(out), p.data+"/") {
		t.Errorf("prefetch here: %d %s%s", code, out, errs)
	}
	if r := p.chat("m", `"max_tokens":2`); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if _, errs, code = thaw("cache", "rm", "tiny"); code != 1 || !strings.Contains(errs, "in use") {
		t.Errorf("cache rm of what runs: %d %s", code, errs)
	}
	staged := regexp.MustCompile(`thaw_loader_stagings_total\{node="second",result="ready"} [1-3]\n`) // the pull of the folder and the start of m may have come to it too
	p.eventually("what the loaders did in /metrics", func() bool {
		m := p.do("GET", "/metrics", "").body
		return strings.Contains(m, `thaw_loader_bytes_total{node="second",source="az"}`) && staged.MatchString(m)
	})
	for _, tt := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"POST", "/api/v1/prefetch", `{"model":"m","node":"third"}`, 404, "node_not_found"},
		{"POST", "/api/v1/prefetch", `{"source":"nosuch://x","node":"second"}`, 400, "bad_source"},
		{"POST", "/api/v1/prefetch", `{"source":"./tiny","node":"second"}`, 400, "bad_source"},
		{"DELETE", "/api/v1/cache/" + strings.Repeat("0", 64), "", 404, "not_cached"},
		{"POST", "/api/v1/cache/" + strings.Repeat("0", 64) + "/verify?node=second", "", 404, "not_cached"},
	} {
		if r := p.do(tt.method, tt.path, tt.body, "Authorization", p.admin()); r.status != tt.status || r.failure().Code != tt.code {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, r.status, r.body)
		}
	}
}

// TestAgentStoreNeedsCertificate: the store endpoints of an agent require a certificate.
func TestAgentStoreNeedsCertificate(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	p.agent("second")
	url := p.agentURL("second")
	agents := &certificates{t: t, dir: filepath.Join(p.data, "agents")}
	as := func(config *tls.Config) *http.Client {
		return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 20 * time.Second}
	}
	server, none := as(agents.client(enroll.ServerName, enroll.AgentName("second"))), as(agents.client("", enroll.AgentName("second")))
	for _, tt := range []struct {
		method, path, body string
		by                 *http.Client
		status             int // 0: the connection is refused
	}{
		{"GET", "/cache", "", none, 0},
		{"GET", "/cache", "", none, 0},
		{"POST", "/cache/x/remove", "", none, 0},
		{"POST", "/prefetch", `{"source":"az://a/b/c"}`, none, 0},
		{"GET", "/cachex", "", server, 404},
		{"GET", "/cache", "", server, 200},
		{"POST", "/cache", "", server, 405},
		{"GET", "/prefetch", "", server, 405},
		{"POST", "/prefetch", `{"source":`, server, 400},
		{"POST", "/prefetch", `{"source":"nosuch://x"}`, server, 400},
		{"POST", "/cache/" + strings.Repeat("0", 64) + "/pin", "", server, 404},
		{"POST", "/cache/" + strings.Repeat("0", 64) + "/eat", "", server, 400},
		{"POST", "/cache/../../etc/pin", "", server, 400},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, url+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		status := 0
		res, err := tt.by.Do(req)
		if err == nil {
			status = res.StatusCode
			res.Body.Close()
		}
		if status != tt.status {
			t.Errorf("%s %s: %d %v, want %d", tt.method, tt.path, status, err, tt.status)
		}
	}
}
