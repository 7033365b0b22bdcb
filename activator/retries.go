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
	if p.req.stream || p.req.hold() == HoldPad {
		return false
	}
	idempotency, count := p.req.source.header("Idempotency-Key"), p.req.source.header("X-Stainless-Retry-Count")
	if idempotency == "" && count == "" || len(idempotency) > 255 {
		return false
	}
	k := runKey{fingerprint: p.req.fingerprint(), team: p.req.team, key: p.req.identity.KeyID, idempotency: idempotency}
	var retryableFrom time.Time
	if idempotency != "" {
		retryableFrom = p.req.began
	} else if patience := admission.OfficialTimeout(p.req.source.header); patience > 0 {
		retryableFrom = p.req.began.Add(patience - patience/10)
	}
	client := p.req.http.req.Context()
	begin := func() *sharedrun.Run { return sharedrun.New(p.req.id, client, retryableFrom, p.a.o.Now) }
	for {
		r, own := p.a.runs.JoinOrBegin(k, idempotency != "" || count != "" && count != "0", begin)
		if p.req.http.run = own; r == nil {
			return false
		}
		if p.awaitRun(r, res) {
			return true
		}
	}
}

// requeuedWithin is how soon it is noticed that a request waits again whose engine failed behind the
// bound of a retry that has joined it.
const requeuedWithin = time.Second

// awaitRun waits for the answer of the request that p repeats; false if that has none for
// others. The bound of the queue's wait holds while that request waits. At an engine it runs
// for as long as the answer takes, unless p's client has a timeout of its own.
func (p *proxyRequest) awaitRun(r *sharedrun.Run, res *httpserver.Response) bool {
	defer r.Leave()
	p.wait.timeouts = admission.ParseTimeouts(p.req.source.header, false)
	late := time.NewTimer(p.wait.bound().Sub(p.a.o.Now()))
	defer late.Stop()
	for {
		select {
		case <-r.Done():
			if r.Answer == nil {
				return false
			}
			p.answerAs(r, res)
			return true
		case <-p.req.source.context().Done():
			p.contextEnded()
		case <-late.C:
			if r.AtEngine.Load() {
				limit := admission.ParseTimeouts(func(name string) string {
					if name == "thaw-max-wait" { // the bound of the queue's wait alone
						return ""
					}
					return p.req.source.header(name)
				}, false).Wait
				if limit == 0 {
					late.Reset(requeuedWithin)
					continue
				}
				if left := limit - p.a.o.Now().Sub(p.req.began); left > 0 {
					late.Reset(left)
					continue
				}
			}
			p.refuse(p.req.fn.Data.queue.ExpiredError(p.req.fn.Snapshot(), p.req.began, p.a.o.Now()))
		}
		p.answerWithout(res)
		return true
	}
}

// answerAs answers p as the request that it repeats was answered.
func (p *proxyRequest) answerAs(r *sharedrun.Run, res *httpserver.Response) {
	res.Status, res.Body = r.Answer.Status, r.Answer.Body
	p.setCommonFields(res)
	res.Set("thaw-joined", r.ID)
	for _, f := range r.Answer.Fields {
		if !slices.ContainsFunc(res.Fields, func(own httpserver.Field) bool { return own.Name == f.Name }) {
			res.Set(f.Name, f.Value)
		}
	}
	p.joined = r.ID
	p.finish(res.Status, "")
}
