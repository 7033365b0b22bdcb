package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/thaw-dev/thaw/testkit/azuretest"
)

// TestCanaries: secrets, prompts and completions do not leak into logs (at level debug),
// metrics, the control API, the data folder, or arguments and environments of processes.
// Each is a canary, a word that occurs nowhere else. The test runs requests that succeed
// and requests that fail, and then searches for the canaries.
func TestCanaries(t *testing.T) {
	linuxOnly(t)
	blobs := azuretest.New(t)
	eachTinyFile(t, blobs.Put)
	const (
		prompt     = "canary-prompt-5e1f"
		completion = "canary-completion-77b0"
		wrongKey   = "sk-thaw-canary-wrong-09aa"
		session    = "canary-session-31c4"
		inQuery    = "canary-query-e2d9"
		inURL      = "canaryurlsig41"
	)
	account := base64.StdEncoding.EncodeToString([]byte("canary-account-key-1b"))
	blobs.Key = account
	signature := "canarysassig83"
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", blobs.Getenv("AZURE_STORAGE_CONNECTION_STRING"))
	t.Setenv("AZURE_STORAGE_ACCOUNT", "otheraccount")
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2024-01-01&sp=rl&sig="+signature)
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1") // requests outside this machine fail
	t.Setenv("HF_TOKEN", "canary-hub-token-c8")
	p := spawn(t, map[string]string{
		"blob.yaml":    modelFile("blob", "  source: "+azuretest.Location("tiny")+"\n  engine: ember\n"),
		"missing.yaml": modelFile("missing", "  source: "+azuretest.Location("none")+"\n  engine: ember\n"),
		"sas.yaml":     modelFile("sas", "  source: az://otheraccount/weights/tiny\n  engine: ember\n  queue: {wait: 1s}\n"),
		"url.yaml":     modelFile("url", "  source: https://otheraccount.blob.core.windows.net/weights/tiny?sig="+inURL+"\n  engine: ember\n"),
		"tiny.yaml":    tiny(t, "tiny", "args: [--token-delay, 5ms]"),
		"cut.yaml":     fakeModel("cut", "--mode cut", ""),
		"frame.yaml":   fakeModel("frame", "--mode frame", ""),
		"fake.yaml":    fakeModel("fake", "", ""),
	}, "--max-body", "256Ki")
	p.agent("second", "--memory", "64Mi")
	key, _ := p.key("default", false)
	adminKey, _ := p.key("default", true)

	ask := func(model, more, auth string, header ...string) reply {
		body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"echo nothing %s"}],"user":%q%s}`, model, prompt, session, more)
		return p.do("POST", "/v1/chat/completions", body,
			append(header, "Authorization", auth, "thaw-session", session, "Cookie", session, "X-Forwarded-For", session)...)
	}
	// These succeed.
	for _, m := range []string{"blob", "tiny", "fake"} {
		for _, more := range []string{`,"max_tokens":4`, `,"max_tokens":4,"stream":true`} {
			if r := ask(m, more, key); r.status != 200 {
				t.Fatalf("%s: %d %v %s", m, r.status, r.err, r.body)
			}
		}
	}
	letters := []byte(completion)
	slices.Reverse(letters)
	if r := p.do("POST", "/v1/chat/completions", `{"model":"fake","messages":[{"role":"user","content":"backwards:`+string(letters)+`"}]}`, "Authorization", adminKey); r.text() != completion {
		t.Fatalf("%d %s", r.status, r.body)
	}
	p.do("POST", "/v1/embeddings", `{"model":"tiny","input":["`+prompt+`"]}`, "X-Api-Key", strings.TrimPrefix(key, "Bearer "))
	// These fail.
	for _, m := range []string{"missing", "sas", "cut", "frame", "nosuch"} {
		ask(m, "", key)
		ask(m, `,"stream":true`, key)
	}
	ask("tiny", "", "Bearer "+wrongKey)
	ask("tiny", "", "")
	ask("tiny", `,"x":"`+strings.Repeat("x", 300<<10)+`"`, key)
	ask("tiny", `,"temperature":"`+prompt+`"`, key)
	ask("tiny", `,"max_tokens":-1`, key)
	for _, body := range []string{`{"model":"tiny","messages":"` + prompt, prompt, `{"` + prompt + `":1,"` + prompt + `":2}`, `{"model":{"x":"` + prompt + `"}}`, `{"model":"` + prompt + `/` + prompt + `"}`} {
		p.do("POST", "/v1/chat/completions", body, "Authorization", key)
	}
	p.do("GET", "/v1/models?key="+inQuery, "", "Authorization", key)
	p.do("GET", "/api/v1/functions?key="+inQuery, "", "Authorization", key)
	p.do("POST", "/v1/chat/completions?sig="+inQuery, `{}`)
	p.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + wrongKey +
		"\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n" + prompt)
	p.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + wrongKey + "\x01\r\n\r\n")
	p.raw(prompt + "\r\n\r\n")
	p.do("PUT", "/api/v1/functions/default/put",
		modelFile("put", "  source: https://otheraccount.blob.core.windows.net/weights/tiny?sig="+inURL+"\n  engine: ember\n"), "Authorization",
		adminKey)
	p.do("POST", "/api/v1/keys", `{"team":"`+prompt+`"`, "Authorization", adminKey)
	_, joinToken := p.joinToken("")
	p.do("POST", "/api/v1/heartbeat", `{"agent_id":"x"}`, "Authorization", "Bearer "+wrongKey)
	// An engine crashes while it holds the prompt.
	req := strings.NewReader(`{"model":"tiny","stream":true,"ignore_eos":true,"max_tokens":400,"messages":[{"role":"user","content":"` + prompt + `"}]}`)
	got := make(chan reply, 1)
	go func() {
		b, _ := io.ReadAll(req)
		got <- p.do("POST", "/v1/chat/completions", string(b), "Authorization", key)
	}()
	p.eventually("a request in flight", func() bool {
		return value(p.do("GET", "/metrics", "", "Authorization", adminKey).body, `thaw_active_requests{model="tiny"`) > 0 || len(got) > 0
	})
	for _, pid := range p.processes() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(line), "\x00engine\x00") && strings.Contains(string(line), "\x00tiny\x00") {
			syscall.Kill(pid, syscall.SIGQUIT) // the Go runtime prints all stacks
		}
	}
	<-got

	canaries := map[string]string{
		"a prompt": prompt, "a completion": completion, "a wrong key": wrongKey, "a session": session, "a query": inQuery,
		"a signature in a source": inURL, "the account's key": account, "the SAS": signature, "the hub's token": "canary-hub-token-c8",
		"a key": strings.TrimPrefix(key, "Bearer "), "an admin key": strings.TrimPrefix(adminKey, "Bearer "),
		"the admin token": p.secret("admin-token"), "a join token": joinToken,
	}
	look := func(where string, text []byte) {
		for what, c := range canaries {
			if i := bytes.Index(text, []byte(c)); i >= 0 {
				t.Errorf("%s is in %s: %q", what, where, text[max(0, i-150):min(len(text), i+len(c)+80)])
			}
		}
	}
	seen := 0
	for _, path := range []string{"/v1/models", "/api/v1/functions", "/api/v1/replicas", "/api/v1/nodes", "/api/v1/teams", "/api/v1/coldstarts", "/api/v1/events", "/api/v1/keys", "/metrics", "/readyz", "/openapi.json",
		"/api/v1/functions/default/blob", "/api/v1/functions/default/sas", "/api/v1/functions/default/missing", "/api/v1/functions/default/fake"} {
		r := p.do("GET", path, "", "Authorization", adminKey)
		look("GET "+path, []byte(r.body))
		if r.status == 200 {
			seen++
		}
	}
	for _, r := range p.itemsAs("/api/v1/replicas", adminKey) {
		look(fmt.Sprint("the log of ", r["id"]),
			[]byte(p.do("GET", fmt.Sprint("/api/v1/replicas/", r["id"], "/logs"), "", "Authorization", adminKey).body))
	}
	if seen < 14 {
		t.Errorf("only %d documents were read", seen)
	}
	engines := 0
	for _, pid := range append(p.processes(), p.proc.Process.Pid) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		look(fmt.Sprintf("the arguments of %q", line), line)
		if bytes.Contains(line, []byte("\x00engine\x00")) || bytes.Contains(line, []byte("\x00fake\x00")) ||
			bytes.Contains(line, []byte("\x00keep\x00")) {
			env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			engines++
			look(fmt.Sprintf("the environment of %q", line), env)
		}
	}
	if engines < 3 {
		t.Errorf("only %d engines and keepers were looked at", engines)
	}
	files := 0
	for _, dir := range []string{p.data, p.data + "-second"} {
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil
			}
			b, _ := os.ReadFile(path)
			files++
			if base := filepath.Base(path); dir == p.data && base == "admin-token" {
				if info, err := d.Info(); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("%s may be read by others: %v", path, info.Mode())
				}
				b = bytes.TrimSpace(b)
				if string(b) == p.secret(base) {
					return nil // the file holds the secret itself
				}
			}
			look(path, b)
			look("the name "+path, []byte(path))
			return nil
		})
	}
	if files < 10 {
		t.Errorf("only %d files were read", files)
	}
	log := p.log.String()
	look("the log", []byte(log))
	if !strings.Contains(log, "request") || len(log) < 5000 {
		t.Errorf("the log is too short to tell: %s", log)
	}
}
