package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
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
// once, and the files are those of the team that made them.
func TestBatch(t *testing.T) {
	p := start(t, map[string]string{"a.yaml": tiny(t, "a", ""), "b.yaml": tiny(t, "b", "")})
	file := p.upload(batchLines("line", 200, "a", "b"))
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
