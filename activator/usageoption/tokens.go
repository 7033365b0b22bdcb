package usageoption

import (
	"log/slog"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
)

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
