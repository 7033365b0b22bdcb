package activator

import (
	"github.com/thaw-dev/thaw/activator/answer"
)

// retryWithoutUsage sends a stream to its replica once more where that may have refused the
// option which the client did not send.
func (p *proxyRequest) retryWithoutUsage(r *answer.Answer, async bool) bool {
	id := p.queued.ReplicaID()
	if !p.tokens.Asked || r.Err != nil || !r.End || !p.a.usages.MayRefuse(id, r.Response.Status, r.Begin) {
		return false
	}
	p.stopEngine()
	r.Response.Close()
	p.tokens.RefusedBy = id
	p.sendToEngine(p.fn.Snapshot(), p.queued.Grant.Replica, async)
	return true
}

// noteUsageOption records what the replica of a good answer did with the option, and logs
// the first refusal.
func (p *proxyRequest) noteUsageOption() {
	id := p.queued.ReplicaID()
	refuses := p.tokens.RefusedBy == id
	if (p.tokens.Asked || refuses) && p.a.usages.Note(id, refuses) && refuses {
		p.a.o.Log.Warn("the engine refuses stream_options, which thaw adds to count the tokens of a stream; its streams are sent without, and their tokens are estimated", "id", p.id, "model", p.fn.Name.Name, "team", p.fn.Name.Team, "replica", id)
	}
}
