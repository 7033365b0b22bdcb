package batches

import (
	"cmp"
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/batches/store"
	"github.com/thaw-dev/thaw/activator/spend"
	"github.com/thaw-dev/thaw/functions/openai"
)

// job is a batch that is being run. Server.mu guards what has no word of its own.
type job struct {
	s   *Server
	rec store.Record // as it was when the job began
	in  *os.File

	ctx    context.Context // of its lines
	cancel context.CancelFunc

	left    int // lines without an entry
	running int
	counts  store.Counts
	usage   store.Usage
	counted bool   // usage has numbers
	outcome string // it is being ended, and that will be its status; "": it is not
	reason  string // the code of the errors that the lines get which have no entry
	ended   bool   // its lines have ended; what is left is to publish them

	writing sync.Mutex // guards lines
	lines   *store.Lines
	dirty   bool // entries were appended since the last flush; guarded by writing
}

// identity is that of the one who made the batch.
func (j *job) identity() auth.Identity {
	return auth.Identity{KeyID: j.rec.KeyID, Team: j.rec.Team, Admin: j.rec.Admin}
}

// end has the job end with an outcome: its lines that run are cut. Server.mu is held.
func (j *job) end(outcome string) {
	if j.outcome == "" {
		j.outcome = outcome
		j.reason = map[string]string{store.Cancelled: "batch_cancelled", store.Expired: "batch_expired"}[outcome]
		j.cancel()
	}
}

// used is the usage so far; nil where no engine has told any.
func (j *job) used() *store.Usage {
	if !j.counted {
		return nil
	}
	return new(j.usage)
}

// count counts an entry, and the usage that its answer tells. Server.mu is held, or the job is
// not in Server.jobs yet.
func (j *job) count(failed bool, answer []byte) {
	if failed {
		j.counts.Failed++
		return
	}
	j.counts.Completed++
	var scan openai.UsageScan
	scan.Observe(answer)
	if u := scan.Usage(); u.Known {
		j.counted = true
		j.usage.InputTokens += u.Prompt
		j.usage.OutputTokens += u.Completion
		j.usage.TotalTokens += u.Prompt + u.Completion
	}
}

// entry is one line of an output or of errors.
type entry struct {
	ID       string      `json:"id"`
	CustomID string      `json:"custom_id"`
	Response *response   `json:"response"`
	Error    *failure    `json:"error"`
	Thaw     *store.Thaw `json:"thaw,omitzero"`
}

// failure is why a line has no answer.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// failures are those that all lines get which have no entry when their batch ends.
var failures = map[string]string{
	"batch_cancelled": "The batch was cancelled before this line had an answer.",
	"batch_expired":   "The completion window was over before this line had an answer.",
	"invalid_api_key": "The key that made the batch is valid no more, so this line was not run.",
}

// retryWrite is the pause before an entry is written again, which the disk had no room for.
const retryWrite = 5 * time.Second

// logOf is the name, for the ledger, of the output of a batch, or of its errors.
func logOf(id string, failed bool) string {
	if failed {
		return id + " errors"
	}
	return id + " output"
}

// record writes an entry, which has the charges for its line, and makes them. It tries until
// it can, or until ctx ends: an answer that was paid for is not thrown away.
func (j *job) record(ctx context.Context, e entry, cost *spend.Entry) error {
	e.ID = "batch_req_" + openai.NewID()
	cost = cmp.Or(cost, &spend.Entry{}) // nil: the line was never sent
	if charges := cost.Take(); charges != nil {
		e.Thaw = &store.Thaw{Charges: charges}
	}
	b, err := json.Marshal(e, jsontext.AllowDuplicateNames(true)) // engines may write what we would not
	if err != nil && e.Response != nil {                          // the answer nests too deep for a part of an entry
		quoted := *e.Response
		quoted.Body = quote(quoted.Body)
		e.Response = &quoted
		b, err = json.Marshal(e)
	}
	if err != nil {
		return err
	}
	failed := e.Response == nil || e.Response.StatusCode != 200
	for first := true; ; first = false {
		j.writing.Lock()
		err := j.lines.Append(b, failed)
		if err == nil {
			j.dirty = true
			end, errs := j.lines.Sizes()
			if failed {
				end = errs
			}
			j.s.o.Ledger.Record(logOf(j.rec.ID, failed), end, cost, j.s.o.Now())
		}
		j.writing.Unlock()
		if err == nil {
			break
		}
		if first {
			j.s.o.Log.Error("an entry of a batch cannot be written; it is tried again", "id", j.rec.ID, "error", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("an entry was not written: %w", err)
		case <-time.After(retryWrite):
		}
	}
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	j.left--
	var answer []byte
	result := "failed"
	if !failed {
		answer, result = e.Response.Body, "completed"
	}
	j.count(failed, answer)
	j.s.o.Count("thaw_batch_lines_total", 1, j.rec.Team, result)
	return nil
}

// open reads the input of a batch and the entries that are there, and makes its job. faults
// are those of an input that was not validated before; then there is no job.
func (s *Server) open(ctx context.Context, r store.Record) (j *job, in *input, err error) {
	f, _, err := s.store.Content(r.Team, r.InputFileID)
	if err != nil {
		return nil, nil, err
	}
	j = &job{s: s, rec: r, in: f}
	defer func() {
		if err != nil || len(in.faults) > 0 {
			f.Close()
			if j.lines != nil {
				j.lines.Close()
			}
			j = nil
		}
	}()
	id := j.identity()
	known := func(model string) *openai.Error {
		_, e := s.lookUp(id, model)
		return e
	}
	done := map[string]bool{}
	if r.Status != store.Validating {
		known = func(string) *openai.Error { return nil } // it was there, and may be again
		j.lines, err = s.store.OpenLines(r.ID, func(e store.Entry, failed bool) {
			s.o.Ledger.Replay(logOf(r.ID, failed), e.End, e.Thaw.Charges, s.o.Now())
			done[e.CustomID] = true
			j.count(failed, e.Response.Body)
		})
		if err != nil {
			return j, nil, err
		}
	}
	if in, err = readInput(f, r.Endpoint, s.o.MaxLine, done, known); err != nil || len(in.faults) > 0 {
		return j, in, err
	}
	if j.lines == nil {
		if j.lines, err = s.store.OpenLines(r.ID, func(store.Entry, bool) {}); err != nil {
			return j, in, err
		}
	}
	j.counts.Total, j.left = in.total, in.left
	j.ctx, j.cancel = context.WithCancel(ctx)
	return j, in, nil
}
