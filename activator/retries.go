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
func (x *proxyRequest) joinRun(keyID string, res *httpserver.Response) bool {
	if x.stream || x.hold() == HoldPad {
		return false
	}
	idempotency, count := x.header("Idempotency-Key"), x.header("X-Stainless-Retry-Count")
	if idempotency == "" && count == "" || len(idempotency) > 255 {
		return false
	}
	runs := x.a.runs
	k := runKey{fingerprint: x.fingerprint(), team: x.team, key: keyID, idempotency: idempotency}
	patience, _ := admission.ParseSpan(x.header("X-Stainless-Timeout"))
	if gap, ok := admission.ParseSpan(x.header("X-Stainless-Read-Timeout")); ok && (patience == 0 || gap < patience) {
		patience = gap
	}
	var lasts time.Time
	if idempotency != "" {
		lasts = x.began
	} else if patience > 0 {
		lasts = x.began.Add(patience - patience/10)
	}
	client := x.req.Context()
	begin := func() *sharedrun.Run { return sharedrun.New(x.id, client, lasts, x.a.o.Now) }
	for {
		r, own := runs.Enter(k, idempotency != "" || count != "" && count != "0", begin)
		if x.shared = own; r == nil {
			return false
		}
		if x.awaitRun(r, res) {
			return true
		}
	}
}

// awaitRun waits for the answer of the request that x repeats; false if that has none for
// others. The bound of the queue's wait holds while that request waits. At an engine it runs
// for as long as the answer takes, unless x's client has a timeout of its own.
func (x *proxyRequest) awaitRun(r *sharedrun.Run, res *httpserver.Response) bool {
	defer r.Leave()
	x.timeouts = admission.ParseTimeouts(x.header, false)
	late := time.NewTimer(x.waitDeadline().Sub(x.a.o.Now()))
	defer late.Stop()
	for {
		select {
		case <-r.Done():
			if r.Answer() == nil {
				return false
			}
			x.answerAs(r, res)
			return true
		case <-x.context().Done():
			x.contextEnded()
		case <-late.C:
			if r.Running.Load() {
				limit := admission.ParseTimeouts(x.headerWithoutWait, false).Wait
				if limit == 0 {
					continue
				}
				if left := limit - x.a.o.Now().Sub(x.began); left > 0 {
					late.Reset(left)
					continue
				}
			}
			x.refuse(x.fn.Data.queue.ExpiredError(x.fn.Snapshot(), x.began, x.a.o.Now()))
		}
		x.answerWithout(res)
		return true
	}
}

// headerWithoutWait is header, but for the bound that is the queue's alone.
func (x *proxyRequest) headerWithoutWait(name string) string {
	if name == "thaw-max-wait" {
		return ""
	}
	return x.header(name)
}

// answerAs answers x as the request that it repeats was answered.
func (x *proxyRequest) answerAs(r *sharedrun.Run, res *httpserver.Response) {
	res.Status, res.Body = r.Answer().Status, r.Answer().Body
	x.setCommonFields(res)
	res.Set("thaw-joined", r.ID)
	for _, f := range r.Answer().Fields {
		if !slices.ContainsFunc(res.Fields, func(own httpserver.Field) bool { return own.Name == f.Name }) {
			res.Set(f.Name, f.Value)
		}
	}
	x.shared = r
	x.finish(res.Status)
}

// endRun hands the request's answer to the retries that have joined it; nil is none.
func (x *proxyRequest) endRun(res *httpserver.Response) {
	if x.leads() {
		x.shared.Finish(res)
	}
}

// leads reports whether retries may join the request.
func (x *proxyRequest) leads() bool { return x.shared != nil && x.shared.ID == x.id }
