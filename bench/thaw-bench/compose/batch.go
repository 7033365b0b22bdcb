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
)

func (b *Batch) finish() {
	if b.NaiveLoads.Seconds > 0 {
		b.Share = b.Loads.Seconds / float64(b.Lines) / (b.NaiveLoads.Seconds / float64(b.NaiveLines))
	}
}

// measureBatch runs a batch live beside interactive requests, sends the same requests at the
// same times to a platform without a batch, and then runs the naive client. Each has a thaw
// serve of its own.
func measureBatch(ctx context.Context, o *Options) (*Batch, error) {
	b := &Batch{Lines: o.Lines, NaiveLines: o.NaiveLines, Models: len(members), GPUs: 1}
	err := o.withModels(ctx, "alone", func(alone *platform) error {
		return o.withModels(ctx, "batch", func(p *platform) error { return playBatch(ctx, o, p, alone, b) })
	})
	if err == nil {
		err = o.withModels(ctx, "naive", func(p *platform) error { return playNaively(ctx, o, p, b) })
	}
	b.finish()
	return b, err
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
		return fmt.Errorf("%s: %w: %s", name, err, p.Process.Tail())
	}
	o.Progress("batch: " + name + " has ended")
	return nil
}

// playBatch runs a batch and interactive requests, which a platform without a batch gets too.
func playBatch(ctx context.Context, o *Options, p, alone *platform, b *Batch) error {
	began := time.Now()
	id, err := p.createBatch(ctx, o.Lines)
	if err != nil {
		return err
	}
	with, without, err := p.visit(ctx, o, alone, id)
	if err != nil {
		return err
	}
	b.Seconds, b.Interactive = time.Since(began).Seconds(), len(with)
	b.With, b.WithP50 = report.Quantile(with, 0.99), report.Quantile(with, 0.5)
	b.Alone, b.AloneP50 = report.Quantile(without, 0.99), report.Quantile(without, 0.5)
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

// visit waits until a batch has completed, and checks its output. While its lines run, visits
// ask for other models: each is a cold request and requests that follow it, and each request
// goes to the platform without a batch as well, at the same time. It returns the seconds to
// the first token of these requests, beside the batch and without it.
func (p *platform) visit(ctx context.Context, o *Options, alone *platform, id string) (with, without []float64, err error) {
	visits := 0
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := p.batch(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		if s.Status == "completed" {
			if s.Counts.Completed != o.Lines || s.Counts.Failed != 0 || visits != o.Visits {
				return nil, nil, fmt.Errorf("the batch has %+v of %d lines after %d visits", s.Counts, o.Lines, visits)
			}
			return with, without, p.checkOutput(ctx, s.Output, o.Lines)
		}
		if s.Status != "validating" && s.Status != "in_progress" && s.Status != "finalizing" {
			return nil, nil, fmt.Errorf("the batch is %s", s.Status)
		}
		// In the middle of a model's lines.
		if visits < o.Visits && s.Counts.Completed >= (2*visits+1)*o.Lines/(2*(o.Visits+1)) {
			model := fmt.Sprint(chat, visits)
			for range o.VisitRequests {
				a, b, err := askBoth(ctx, p, alone, model)
				if err != nil {
					return nil, nil, err
				}
				with, without = append(with, a.Seconds()), append(without, b.Seconds())
			}
			visits++
			o.Progress(fmt.Sprintf("batch: a visit after %d of %d lines", s.Counts.Completed, o.Lines))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// askBoth sends the same request to two platforms at once, and returns when each sent its
// first token.
func askBoth(ctx context.Context, p, q *platform, model string) (first, second time.Duration, err error) {
	var wg sync.WaitGroup
	var other error
	wg.Go(func() { second, _, other = q.ask(ctx, model, "Hello", true) })
	first, _, err = p.ask(ctx, model, "Hello", true)
	wg.Wait()
	return first, second, errors.Join(err, other)
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
