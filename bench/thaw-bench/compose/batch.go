package compose

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/bench/report"
)

// Batch compares a batch over several models on one GPU with a client that sends its lines
// in order, some at a time, as ordinary requests.
type Batch struct {
	Lines       int     `json:"lines"`
	NaiveLines  int     `json:"naive_lines"` // the naive client's, the first of them
	Models      int     `json:"models"`
	GPUs        int     `json:"gpus"`
	Loads       loads   `json:"batch_loads"`
	NaiveLoads  loads   `json:"naive_loads"`
	Seconds     float64 `json:"batch_seconds"`
	NaiveTook   float64 `json:"naive_seconds"`
	Share       float64 `json:"load_share"`           // GPU seconds of loads per line, the batch's over the naive client's
	Interactive int     `json:"interactive_requests"` // while the batch ran
	Alone       float64 `json:"interactive_alone_p99_seconds"`
	With        float64 `json:"interactive_with_batch_p99_seconds"`
	WithNaive   float64 `json:"interactive_with_naive_p99_seconds,omitempty"`
	AloneP50    float64 `json:"interactive_alone_p50_seconds"`
	WithP50     float64 `json:"interactive_with_batch_p50_seconds"`
}

const (
	naiveAtOnce = 8
	loadGoal    = 0.05
	p99Goal     = 1.1
	linePause   = 100 * time.Millisecond // of a live engine before its answer
	batchLoad   = 2 * time.Second        // of a live engine
	batchIdle   = 10 * time.Second       // after which a model of no use is stopped
	visitPause  = 40 * time.Second       // between live interactive requests: longer than Batches keep off the GPU
)

func (b *Batch) finish() {
	if b.NaiveLoads.Seconds > 0 {
		b.Share = b.Loads.Seconds / float64(b.Lines) / (b.NaiveLoads.Seconds / float64(b.NaiveLines))
	}
}

// measureBatch sends interactive requests alone, runs a batch live beside such requests,
// and then runs the naive client. Each has a thaw serve of its own, and each interactive
// request a model of its own, of the same GPU.
func measureBatch(ctx context.Context, o *Options) (*Batch, error) {
	b := &Batch{Lines: o.Lines, NaiveLines: o.NaiveLines, Models: len(members), GPUs: 1}
	for _, x := range []struct {
		name string
		step func(context.Context, *Options, *platform, *Batch) error
	}{{"alone", visitAlone}, {"batch", playBatch}, {"naive", playNaively}} {
		if err := o.withModels(ctx, x.name, func(p *platform) error { return x.step(ctx, o, p, b) }); err != nil {
			return nil, fmt.Errorf("%s: %w", x.name, err)
		}
		o.Progress("batch: " + x.name)
	}
	b.finish()
	return b, nil
}

// withModels runs a step on a platform of one GPU.
func (o *Options) withModels(ctx context.Context, name string, step func(*platform) error) error {
	var documents []map[string]any
	for i := range o.Visits {
		documents = append(documents, o.modelDocument(fmt.Sprint(chat, i), 1, o.load(batchLoad), batchIdle))
	}
	for _, m := range members {
		documents = append(documents, o.modelDocument(m, 1, o.load(batchLoad), batchIdle))
	}
	p, err := o.start(ctx, name, 1, documents...)
	if err != nil {
		return err
	}
	defer p.End()
	if err := step(p); err != nil {
		return fmt.Errorf("%w: %s", err, p.Process.Tail())
	}
	return nil
}

// visitAlone sends interactive requests while the GPU is free.
func visitAlone(ctx context.Context, o *Options, p *platform, b *Batch) error {
	var alone []float64
	for i := range o.Visits {
		first, _, err := p.ask(ctx, fmt.Sprint(chat, i), "Hello", true)
		if err == nil {
			err = p.Stop(ctx, fullName(fmt.Sprint(chat, i)))
		}
		if err != nil {
			return err
		}
		alone = append(alone, first.Seconds())
	}
	b.Alone, b.AloneP50 = report.Quantile(alone, 0.99), report.Quantile(alone, 0.5)
	return nil
}

// playBatch runs a batch and interactive requests.
func playBatch(ctx context.Context, o *Options, p *platform, b *Batch) error {
	began := time.Now()
	id, err := p.createBatch(ctx, o.Lines)
	if err != nil {
		return err
	}
	with, err := p.visit(ctx, o, id)
	if err != nil {
		return err
	}
	b.Seconds = time.Since(began).Seconds()
	b.Interactive, b.With, b.WithP50 = len(with), report.Quantile(with, 0.99), report.Quantile(with, 0.5)
	b.Loads, err = p.loads(ctx, members)
	return err
}

// playNaively runs the naive client.
func playNaively(ctx context.Context, o *Options, p *platform, b *Batch) (err error) {
	began := time.Now()
	if err := p.sendNaively(ctx, o.NaiveLines); err != nil {
		return err
	}
	b.NaiveTook = time.Since(began).Seconds()
	b.NaiveLoads, err = p.loads(ctx, members)
	return err
}

// visit waits until a batch has completed, checks its output, and asks other models from
// time to time. It returns the seconds to the first token of each of these requests.
func (p *platform) visit(ctx context.Context, o *Options, id string) (first []float64, err error) {
	// The first visit comes in the batch's second window.
	next := time.Now().Add(2 * o.load(batchLoad))
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := p.batch(ctx, id)
		if err != nil {
			return nil, err
		}
		if s.Status == "completed" {
			if s.Counts.Completed != o.Lines || s.Counts.Failed != 0 {
				return nil, fmt.Errorf("the batch has %+v of %d lines", s.Counts, o.Lines)
			}
			return first, p.checkOutput(ctx, s.Output, o.Lines)
		}
		if s.Status != "validating" && s.Status != "in_progress" && s.Status != "finalizing" {
			return nil, fmt.Errorf("the batch is %s", s.Status)
		}
		if len(first) < o.Visits && s.Counts.Completed > 0 && time.Now().After(next) {
			took, _, err := p.ask(ctx, fmt.Sprint(chat, len(first)), "Hello", true)
			if err != nil {
				return nil, err
			}
			first = append(first, took.Seconds())
			o.Progress(fmt.Sprintf("batch: %d of %d lines, a visit after %v", s.Counts.Completed, o.Lines, took.Round(time.Millisecond)))
			next = time.Now().Add(visitPause)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// linePrompt is the prompt of every line.
var linePrompt = "@fake delay=" + linePause.String()

// sendNaively sends lines in order, some at a time.
func (p *platform) sendNaively(ctx context.Context, lines int) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, naiveAtOnce)
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil {
				n := int(next.Add(1)) - 1
				if n >= lines {
					return
				}
				_, _, errs[i] = p.ask(ctx, members[n%len(members)], linePrompt, false)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// batchState is what is read of a batch.
type batchState struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Output string `json:"output_file_id"`
	Counts struct {
		Total     int `json:"total"`
		Completed int `json:"completed"`
		Failed    int `json:"failed"`
	} `json:"request_counts"`
}

// createBatch uploads lines over the models in turn and makes a batch of them.
func (p *platform) createBatch(ctx context.Context, lines int) (id string, err error) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	err = w.WriteField("purpose", "batch")
	part, err2 := w.CreateFormFile("file", "lines.jsonl")
	if err = errors.Join(err, err2); err != nil {
		return "", err
	}
	for i := range lines {
		fmt.Fprintf(part, `{"custom_id":"line-%d","method":"POST","url":"/v1/chat/completions","body":{"model":%q,"messages":[{"role":"user","content":%q}]}}`+"\n", i, members[i%len(members)], linePrompt)
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	var file, made struct {
		ID string `json:"id"`
	}
	if err := p.callJSON(ctx, "POST", "/v1/files", w.FormDataContentType(), b.Bytes(), &file); err != nil {
		return "", err
	}
	q := fmt.Appendf(nil, `{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":"24h"}`, file.ID)
	err = p.callJSON(ctx, "POST", "/v1/batches", "application/json", q, &made)
	return made.ID, err
}

func (p *platform) batch(ctx context.Context, id string) (s batchState, err error) {
	err = p.callJSON(ctx, "GET", "/v1/batches/"+id, "", nil, &s)
	return s, err
}

// checkOutput requires each line in the output exactly once.
func (p *platform) checkOutput(ctx context.Context, file string, lines int) error {
	out, err := p.callRaw(ctx, "GET", "/v1/files/"+file+"/content", "", nil)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for line := range bytes.Lines(out) {
		var x struct {
			ID       string `json:"custom_id"`
			Response struct {
				Status int `json:"status_code"`
			} `json:"response"`
		}
		if err := json.Unmarshal(line, &x); err != nil || seen[x.ID] || x.Response.Status != http.StatusOK {
			return fmt.Errorf("output line %.200s: %v, again: %v", line, err, seen[x.ID])
		}
		seen[x.ID] = true
	}
	if len(seen) != lines {
		return fmt.Errorf("the output has %d of %d lines", len(seen), lines)
	}
	return nil
}

func (p *platform) callJSON(ctx context.Context, method, path, kind string, body []byte, into any) error {
	b, err := p.callRaw(ctx, method, path, kind, body)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

func (p *platform) callRaw(ctx context.Context, method, path, kind string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	req.Header.Set("Authorization", "Bearer "+p.key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, res.Status, b)
	}
	return b, err
}
