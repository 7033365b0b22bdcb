package activator

import (
	"bytes"
	"log/slog"

	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/usageoption"
)

// asksUsageOf reports whether the request goes to a replica with the option that asks for
// usage.
func (x *proxyRequest) asksUsageOf(r *snapshot.Replica) bool {
	return x.stripsUsage() && (x.remote != nil || r.ID != x.usageRefused && !x.a.usages.Refuses(r.ID))
}

// retryWithoutUsage sends a stream to its replica once more where that may have refused the
// option which the client did not send.
func (x *proxyRequest) retryWithoutUsage(r *answer.Answer, async bool) bool {
	id := x.queued.ReplicaID()
	if !x.asksUsage || r.Err != nil || !r.End || !x.a.usages.MayRefuse(id, r.Response.Status, r.Begin) {
		return false
	}
	x.stopEngine()
	r.Response.Close()
	x.usageRefused = id
	x.sendToEngine(x.fn.Snapshot(), x.queued.Grant.Replica, async)
	return true
}

// noteUsageOption records what the replica of a good answer did with the option, and logs
// the first refusal.
func (x *proxyRequest) noteUsageOption() {
	id := x.queued.ReplicaID()
	refuses := x.usageRefused == id
	if (x.asksUsage || refuses) && x.a.usages.Note(id, refuses) && refuses {
		x.a.o.Log.Warn("the engine refuses stream_options, which thaw adds to count the tokens of a stream; its streams are sent without, and their tokens are estimated", "id", x.id, "model", x.fn.Name.Name, "team", x.fn.Name.Team, "replica", id)
	}
}

// countEvents counts the events of a stream whose tokens are to be estimated.
func (x *proxyRequest) countEvents(p []byte) {
	if !x.asksUsage && x.stripsUsage() {
		x.events += int64(bytes.Count(p, []byte("data:")))
	}
}

// estimateUsage estimates the usage of a stream whose engine was not asked for it.
func (x *proxyRequest) estimateUsage() {
	if !x.usage.Known && x.events > 0 {
		x.usage, x.estimated = usageoption.Estimate(x.env.PromptBytes, x.events), true
	}
}

// usageAttrs are the fields of the log about tokens.
func (x *proxyRequest) usageAttrs(attrs []slog.Attr) []slog.Attr {
	if x.usage.Known || x.estimated {
		attrs = append(attrs, slog.Int64("prompt_tokens", x.usage.Prompt), slog.Int64("completion_tokens", x.usage.Completion))
	}
	if x.estimated {
		attrs = append(attrs, slog.Bool("estimated", true))
	}
	return attrs
}
