package activator

import (
	"bytes"
	"log/slog"
	"time"

	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/usageoption"
	"github.com/thaw-dev/thaw/functions/openai"
)

// tokens is what a request has used, and how that is known.
type tokens struct {
	usage     openai.Usage
	estimated bool          // usage is: the engine was not asked for it
	asked     bool          // the request was sent with the option that asks for usage
	refusedBy string        // the replica that may have refused the option
	events    int64         // of a stream whose usage is to be estimated
	firstTook time.Duration // to the first token of a stream; 0: none has come
}

// estimate sets the usage of a stream whose engine was not asked for it.
func (t *tokens) estimate(promptBytes int) {
	if !t.usage.Known && t.events > 0 {
		t.usage, t.estimated = usageoption.Estimate(promptBytes, t.events), true
	}
}

// attrs appends the fields of the log about tokens.
func (t *tokens) attrs(attrs []slog.Attr) []slog.Attr {
	if t.usage.Known || t.estimated {
		attrs = append(attrs, slog.Int64("prompt_tokens", t.usage.Prompt), slog.Int64("completion_tokens", t.usage.Completion))
	}
	if t.estimated {
		attrs = append(attrs, slog.Bool("estimated", true))
	}
	return attrs
}

// asksUsageOf reports whether the request goes to a replica with the option that asks for
// usage.
func (p *proxyRequest) asksUsageOf(r *snapshot.Replica) bool {
	return p.stripsUsage() && (p.remote != nil || r.ID != p.tokens.refusedBy && !p.a.usages.Refuses(r.ID))
}

// retryWithoutUsage sends a stream to its replica once more where that may have refused the
// option which the client did not send.
func (p *proxyRequest) retryWithoutUsage(r *answer.Answer, async bool) bool {
	id := p.queued.ReplicaID()
	if !p.tokens.asked || r.Err != nil || !r.End || !p.a.usages.MayRefuse(id, r.Response.Status, r.Begin) {
		return false
	}
	p.stopEngine()
	r.Response.Close()
	p.tokens.refusedBy = id
	p.sendToEngine(p.fn.Snapshot(), p.queued.Grant.Replica, async)
	return true
}

// noteUsageOption records what the replica of a good answer did with the option, and logs
// the first refusal.
func (p *proxyRequest) noteUsageOption() {
	id := p.queued.ReplicaID()
	refuses := p.tokens.refusedBy == id
	if (p.tokens.asked || refuses) && p.a.usages.Note(id, refuses) && refuses {
		p.a.o.Log.Warn("the engine refuses stream_options, which thaw adds to count the tokens of a stream; its streams are sent without, and their tokens are estimated", "id", p.id, "model", p.fn.Name.Name, "team", p.fn.Name.Team, "replica", id)
	}
}

// countEvents counts the events of a stream whose tokens are to be estimated.
func (p *proxyRequest) countEvents(chunk []byte) {
	if !p.tokens.asked && p.stripsUsage() {
		p.tokens.events += int64(bytes.Count(chunk, []byte("data:")))
	}
}
