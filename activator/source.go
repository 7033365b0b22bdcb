package activator

import (
	"context"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/sharedrun"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// source is where a request comes from: a client, whose request is sent to the engine from
// here, or the caller of Reserve, who sends its own.
type source interface {
	header(name string) string
	context() context.Context
	bodyBytes() int64                                       // how much of the body is in memory while it waits
	mustDrain() bool                                        // the server that has the request shuts down
	boundWait(wait time.Duration, o *Options) time.Duration // of a request that is no stream
	affinityText(env *openai.Envelope) []byte               // what the choice of replica depends on where no session is named
	refuseRemote(name functions.Name) *openai.Error         // nil: a Remote may answer it
	assign(r *snapshot.Replica) bool                        // gives the replica to the caller; false: the request is sent from here
}

// httpSource is a request of a client.
type httpSource struct {
	req *httpserver.Request
	run *sharedrun.Run // that retries may join, and whose context the request has; nil: none
}

func (h *httpSource) header(name string) string { return h.req.Header(name) }

func (h *httpSource) context() context.Context {
	if h.run != nil {
		return &h.run.Context
	}
	return h.req.Context()
}

// endRun hands the request's answer to the retries that have joined it; nil is none.
func (h *httpSource) endRun(res *httpserver.Response) {
	if h.run != nil {
		h.run.Finish(res)
	}
}

func (h *httpSource) bodyBytes() int64 { return int64(cap(h.req.Body)) }
func (h *httpSource) mustDrain() bool  { return h.req.Draining() }

// proxiedWait bounds the wait of a plain request behind a proxy, whose timeout is not
// known: nginx gives up after 60 s.
const proxiedWait = 55 * time.Second

func (h *httpSource) boundWait(wait time.Duration, o *Options) time.Duration {
	wait = min(wait, o.Timing.PlainWait)
	if h.header("thaw-max-wait") == "" && (h.req.IsHTTP10() || h.header("Via") != "" || h.header("X-Forwarded-For") != "") {
		wait = min(wait, proxiedWait)
	}
	return wait
}

// The adapter needs no part in the text: it limits the choice already.
func (h *httpSource) affinityText(env *openai.Envelope) []byte {
	if env.User != "" {
		return []byte(env.User)
	}
	return admission.Opening(h.req.Body)
}

func (h *httpSource) refuseRemote(functions.Name) *openai.Error { return nil }
func (h *httpSource) assign(*snapshot.Replica) bool             { return false }

func (r *Reservation) header(name string) string {
	if r.want.Header == nil {
		return ""
	}
	return r.want.Header(name)
}

func (r *Reservation) context() context.Context                               { return r.ctx }
func (r *Reservation) bodyBytes() int64                                       { return r.want.Bytes }
func (r *Reservation) mustDrain() bool                                        { return false }
func (r *Reservation) boundWait(wait time.Duration, _ *Options) time.Duration { return wait }
func (r *Reservation) affinityText(*openai.Envelope) []byte                   { return nil }

// refuseRemote refuses a Remote, which answers only what is checked for its class of data.
func (r *Reservation) refuseRemote(name functions.Name) *openai.Error {
	return openai.New(openai.ModelNotFound, "The model `"+name.Short()+"` does not exist any more: a Remote has its name.")
}

func (r *Reservation) assign(replica *snapshot.Replica) bool {
	p := &r.proxied
	r.Endpoint, r.Key = replica.Endpoint, replica.Key
	r.External = p.req.fn.Snapshot().External
	p.attempt.sentAt = p.a.o.Now()
	p.phase = reserved
	return true
}
