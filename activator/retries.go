package activator

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/sharedrun"
)

// A client's retry joins the plain request that it repeats, while that waits or runs, and
// gets its answer: the engine generates once. A retry is a request with the same
// Idempotency-Key, or with X-Stainless-Retry-Count above 0, and the same key, path,
// function and body. Streams are not joined: their clients wait as long as comments come.

// runKey identifies the requests that are one.
type runKey struct {
	fingerprint
	team, key   string
	idempotency string
}

// joinRun answers a retry by the request that it repeats. Otherwise it returns false: the
// request runs by itself, and retries of it may join it.
func (p *proxyRequest) joinRun(res *httpserver.Response) bool {
	if p.stream || p.hold() == HoldPad {
		return false
	}
	idempotency, count := p.source.header("Idempotency-Key"), p.source.header("X-Stainless-Retry-Count")
	if idempotency == "" && count == "" || len(idempotency) > 255 {
		return false
	}
	runs := p.a.runs
	k := runKey{fingerprint: p.fingerprint(), team: p.team, key: p.identity.KeyID, idempotency: idempotency}
	var retryableFrom time.Time
	if idempotency != "" {
		retryableFrom = p.began
	} else if patience := admission.OfficialTimeout(p.source.header); patience > 0 {
		retryableFrom = p.began.Add(patience - patience/10)
	}
	client := p.http.req.Context()
	begin := func() *sharedrun.Run { return sharedrun.New(p.id, client, retryableFrom, p.a.o.Now) }
	for {
		r, own := runs.JoinOrBegin(k, idempotency != "" || count != "" && count != "0", begin)
		if p.shared, p.http.run = own, own; r == nil {
			return false
		}
		if p.awaitRun(r, res) {
			return true
		}
	}
}

// awaitRun waits for the answer of the request that p repeats; false if that has none for
// others. The bound of the queue's wait holds while that request waits. At an engine it runs
// for as long as the answer takes, unless p's client has a timeout of its own.
func (p *proxyRequest) awaitRun(r *sharedrun.Run, res *httpserver.Response) bool {
	defer r.Leave()
	p.wait.timeouts = admission.ParseTimeouts(p.source.header, false)
	late := time.NewTimer(p.waitDeadline().Sub(p.a.o.Now()))
	defer late.Stop()
	for {
		select {
		case <-r.Done():
			if r.Answer() == nil {
				return false
			}
			p.answerAs(r, res)
			return true
		case <-p.source.context().Done():
			p.contextEnded()
		case <-late.C:
			if r.AtEngine.Load() {
				limit := admission.ParseTimeouts(p.headerWithoutWait, false).Wait
				if limit == 0 {
					continue
				}
				if left := limit - p.a.o.Now().Sub(p.began); left > 0 {
					late.Reset(left)
					continue
				}
			}
			p.refuse(p.fn.Data.queue.ExpiredError(p.fn.Snapshot(), p.began, p.a.o.Now()))
		}
		p.answerWithout(res)
		return true
	}
}

// headerWithoutWait is header, but for the bound that is the queue's alone.
func (p *proxyRequest) headerWithoutWait(name string) string {
	if name == "thaw-max-wait" {
		return ""
	}
	return p.source.header(name)
}

// answerAs answers p as the request that it repeats was answered.
func (p *proxyRequest) answerAs(r *sharedrun.Run, res *httpserver.Response) {
	res.Status, res.Body = r.Answer().Status, r.Answer().Body
	p.setCommonFields(res)
	res.Set("thaw-joined", r.ID)
	for _, f := range r.Answer().Fields {
		if !slices.ContainsFunc(res.Fields, func(own httpserver.Field) bool { return own.Name == f.Name }) {
			res.Set(f.Name, f.Value)
		}
	}
	p.shared = r
	p.finish(res.Status)
}

// endRun hands the request's answer to the retries that have joined it; nil is none.
func (p *proxyRequest) endRun(res *httpserver.Response) {
	if p.leads() {
		p.shared.Finish(res)
	}
}

// leads reports whether retries may join the request.
func (p *proxyRequest) leads() bool { return p.shared != nil && p.shared.ID == p.id }
