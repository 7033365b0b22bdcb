package routes

import (
	"cmp"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Pace is what was measured of one function's answers, as moving averages. The zero value
// has measured nothing. Its methods may be called concurrently; of two observations at
// the same moment one may be lost.
type Pace struct {
	first  average // seconds from sending to the first byte of a stream
	plain  average // seconds from sending to the whole of a plain answer
	hold   average // seconds at the engine
	share  average // hold, divided by the requests that the replica had at once
	output average // tokens of an answer
	cost   average // of a Composition's answer
}

// average is a moving average; 0 is none.
type average struct{ bits atomic.Uint64 }

// averageWeight of a new value.
const averageWeight = 0.125

func (a *average) observe(v float64) {
	if v <= 0 {
		return
	}
	if old := a.value(); old > 0 {
		v = old + averageWeight*(v-old)
	}
	a.bits.Store(math.Float64bits(v))
}

func (a *average) value() float64 { return math.Float64frombits(a.bits.Load()) }

// Observe takes in a good answer: the times from sending to its first byte and to its end,
// how many tokens it had (0 unknown), and how many requests its replica had at its end.
func (p *Pace) Observe(stream bool, first, whole time.Duration, output int64, together int) {
	if stream {
		p.first.observe(first.Seconds())
	} else {
		p.plain.observe(first.Seconds())
	}
	p.hold.observe(whole.Seconds())
	p.share.observe(whole.Seconds() / float64(max(together, 1)))
	p.output.observe(float64(output))
}

// ObserveCost takes in what a good answer of a Composition cost.
func (p *Pace) ObserveCost(cost float64) { p.cost.observe(cost) }

// firstToken is the expected time to the first token at a replica with a free slot;
// negative if unknown. Where no stream was measured a plain answer is the upper bound.
func (p *Pace) firstToken() time.Duration {
	v := cmp.Or(p.first.value(), p.plain.value())
	if v == 0 {
		return -1
	}
	return time.Duration(v * float64(time.Second))
}

// state is the function's state as a word of the contracts.
func (f *Function) state(now time.Time) string {
	s := f.Snapshot
	switch {
	case len(s.Replicas) > 0:
		return functions.Ready.Word()
	case s.Starting():
		return s.State.Word()
	case admission.BreakerOpen(s, now):
		return functions.Failed.Word()
	case s.Sleeping:
		return functions.Sleeping.Word()
	}
	return s.State.Word()
}

// expected is the expected time to the first token; negative if unknown. At READY replicas
// it has what was measured and the wait in the queue, of which each slot takes one
// request at a time. A cold function has the forecast of its start before it.
func (f *Function) expected(now time.Time) time.Duration {
	first := f.Pace.firstToken()
	s := f.Snapshot
	if len(s.Replicas) == 0 {
		left := admission.LikelyETA(s, now)
		if left < 0 {
			return -1
		}
		return left + max(first, 0)
	}
	if first < 0 || f.Load.AdmitsAtOnce() {
		return first
	}
	slots := 0
	for i := range s.Replicas {
		slots += s.SlotsOf(&s.Replicas[i])
	}
	wait := f.Pace.hold.value() * float64(f.Load.Queued+1) / float64(max(slots, 1))
	return first + time.Duration(wait*float64(time.Second))
}

// assumedOutput is the tokens of an answer where nothing was measured and the request sets
// no bound.
const assumedOutput = 256

// cost is the expected cost of a request with a prompt of so many tokens; negative where it
// is unknown. A model without a price costs its GPU seconds: the time of a request at the
// engine, divided by the requests that share a replica then, times the GPUs of a replica.
func (f *Function) cost(prompt int, maxTokens int64) float64 {
	price, ok := f.price()
	if !ok {
		gpus, share := 0, f.Pace.share.value()
		if m := f.Snapshot.Model; m != nil {
			gpus = m.Spec.Resources.GPUs
		}
		if f.GPUHourPrice <= 0 || gpus > 0 && share == 0 {
			return -1
		}
		return share * float64(gpus) * f.GPUHourPrice / 3600
	}
	output := f.Pace.output.value()
	if output == 0 {
		output = assumedOutput
		if maxTokens > 0 {
			output = float64(maxTokens)
		}
	}
	if maxTokens > 0 {
		output = min(output, float64(maxTokens))
	}
	return (float64(prompt)*price.Input + output*price.Output) / 1e6
}

// price of a function; false where its file has none. A Remote without one costs nothing.
func (f *Function) price() (functions.Price, bool) {
	if r := f.Snapshot.Remote; r != nil {
		return r.Spec.Price, true
	}
	if m := f.Snapshot.Model; m != nil && m.Spec.Price != (functions.Price{}) {
		return m.Spec.Price, true
	}
	return functions.Price{}, false
}

// closed is why the function takes no request now, with the answer to one that has no
// other candidate; nil where it does.
func (f *Function) closed(now time.Time) (why string, e *openai.Error) {
	s := f.Snapshot
	if f.Refusal != nil {
		first, _, _ := strings.Cut(f.Refusal.Message, ". ")
		return functions.Clip(strings.TrimSuffix(first, ".")), f.Refusal
	}
	if len(s.Replicas) == 0 {
		d := admission.Decide(s, f.Load, admission.ClientTimeouts{}, now)
		if d.Verdict == admission.Refuse {
			if s.Failure != nil && d.Error.Code == openai.ModelLoadFailed {
				return "it failed: " + functions.Clip(s.Failure.Reason), d.Error
			}
			return d.Error.Message, d.Error
		}
	}
	if m := s.Model; m != nil && !f.Load.AdmitsAtOnce() && f.Load.Queued >= m.Spec.Queue.Requests &&
		(len(s.Replicas) == 0 || f.Load.FreeSlots == 0) {
		return "its queue is full", admission.QueueFullError()
	}
	return "", nil
}
