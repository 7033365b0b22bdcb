// Package usageoption remembers which replicas refuse stream_options, the field by which a stream
// reports its tokens, and estimates the tokens of streams that were asked for without it.
package usageoption

import (
	"bytes"
	"log/slog"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
)

// maxReplicas bounds a Table. Beyond it all are dropped, and learnt again.
const maxReplicas = 4096

// Table has what replicas did with the option. The zero value is empty; its methods may be
// called concurrently.
type Table struct {
	mu      sync.Mutex
	refuses map[string]bool // by replica; false: it has served a stream with the option
}

// Refuses reports whether the replica is known to refuse the option.
func (t *Table) Refuses(replica string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refuses[replica]
}

// Note records what a replica did with the option, and reports whether that is new.
func (t *Table) Note(replica string, refuses bool) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, known := t.refuses[replica]
	if known && was == refuses {
		return false
	}
	if t.refuses == nil || !known && len(t.refuses) >= maxReplicas {
		t.refuses = map[string]bool{}
	}
	t.refuses[replica] = refuses
	return true
}

// MayRefuse reports whether an error answer of a replica may be about the option: it names
// the option, or the replica has served no stream with it yet. FastAPI answers 422.
func (t *Table) MayRefuse(replica string, status int, body []byte) bool {
	if status != 400 && status != 422 {
		return false
	}
	if bytes.Contains(body, []byte("stream_options")) || bytes.Contains(body, []byte("include_usage")) {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.refuses[replica]
	return !known
}

// estimate is the usage of a stream that reported none: a token for each of its events, and
// for four bytes of its prompt. It is not Known.
func estimate(promptBytes int, events int64) openai.Usage {
	return openai.Usage{Prompt: int64(promptBytes+3) / 4, Completion: events}
}

// Tokens is what a request has used, and how that is known.
type Tokens struct {
	Usage     openai.Usage
	Estimated bool          // Usage is: the engine was not asked for it
	Asked     bool          // the request was sent with the option that asks for usage
	RefusedBy string        // the replica that may have refused the option
	Events    int64         // of a stream whose usage is to be estimated
	FirstTook time.Duration // to the first token of a stream; 0: none has come
}

// Estimate sets the usage of a stream whose engine was not asked for it.
func (t *Tokens) Estimate(promptBytes int) {
	if !t.Usage.Known && t.Events > 0 {
		t.Usage, t.Estimated = estimate(promptBytes, t.Events), true
	}
}

// AppendAttrs appends the fields of the log about tokens.
func (t *Tokens) AppendAttrs(attrs []slog.Attr) []slog.Attr {
	if t.Usage.Known || t.Estimated {
		attrs = append(attrs, slog.Int64("prompt_tokens", t.Usage.Prompt), slog.Int64("completion_tokens", t.Usage.Completion))
	}
	if t.Estimated {
		attrs = append(attrs, slog.Bool("estimated", true))
	}
	return attrs
}
