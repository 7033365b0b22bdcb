package admission

import (
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Verdict is what becomes of a request next.
type Verdict uint8

const (
	Serve  Verdict = iota // a READY replica has a slot for it
	Wait                  // it waits
	Refuse                // answered at once with Decision.Error
)

// Decision is a verdict and its arguments.
type Decision struct {
	Verdict Verdict
	Error   *openai.Error // of Refuse
	Wake    Wake          // a refused request too may have the function woken: for its retry
}

// ClientTimeouts is how long a client waits, as far as it is known.
type ClientTimeouts struct {
	Wait         time.Duration // until an answer must begin; 0 unknown
	Gap          time.Duration // between two bytes of a stream; 0 unknown
	NoWake       bool          // the client will not retry, so do not wake for it
	RefuseToWait bool          // the operator wants no plain request to wait (Hold503)
}

// Decide returns what becomes of a request for the function of snapshot f, whose queue
// has load l. It is pure, but for the jitter of Retry-After. Wake is what the request alone would
// ask; see Request.Decide.
func Decide(f *snapshot.Snapshot, l Load, t ClientTimeouts, now time.Time) Decision {
	if len(f.Replicas) > 0 {
		if l.AdmitsAtOnce() {
			return Decision{Verdict: Serve}
		}
		return Decision{Verdict: Wait}
	}
	forRetry := Replica
	if t.NoWake {
		forRetry = NoWake
	}
	if BreakerOpen(f, now) {
		return Decision{Verdict: Refuse, Error: loadFailedError(f)}
	}
	if e := blockedError(f, now); e != nil {
		if e.Code != openai.GPUQuotaExceeded { // the platform decides anew at the next wake; a spent budget stays spent
			forRetry = NoWake
		}
		return Decision{Verdict: Refuse, Error: e, Wake: forRetry}
	}
	if t.RefuseToWait || t.Wait > 0 && pessimisticETA(f, now) > t.Wait {
		return Decision{Verdict: Refuse, Error: loadingError(f, now), Wake: forRetry}
	}
	if f.Starting() {
		return Decision{Verdict: Wait}
	}
	return Decision{Verdict: Wait, Wake: Replica}
}

func BreakerOpen(f *snapshot.Snapshot, now time.Time) bool {
	return f.Failure != nil && (f.Failure.Until.IsZero() || now.Before(f.Failure.Until))
}

// pessimisticETA is the time to READY that one in ten starts exceeds; -1 unknown.
func pessimisticETA(f *snapshot.Snapshot, now time.Time) time.Duration {
	if left := f.Blocked.Remaining(now); left > 0 {
		return left
	}
	if !f.Starting() {
		return f.Forecast.P90
	}
	if f.Forecast.P90 >= 0 && f.ColdStart != nil && !f.ColdStart.State.Over() {
		return max(f.Forecast.P90-now.Sub(f.ColdStart.Began), f.Progress.ETA, 0)
	}
	return f.Progress.ETA
}

// LikelyETA is the likely time to READY; -1 unknown.
func LikelyETA(f *snapshot.Snapshot, now time.Time) time.Duration {
	switch {
	case f.Starting() && f.Progress.ETA >= 0:
		return f.Progress.ETA
	case f.Blocked != nil:
		return f.Blocked.Remaining(now) // the start cannot begin before
	case f.Starting() && f.Forecast.P50 >= 0 && f.ColdStart != nil:
		return max(f.Forecast.P50-now.Sub(f.ColdStart.Began), 0)
	}
	return f.Forecast.P50
}

func loadFailedError(f *snapshot.Snapshot) *openai.Error {
	if f.Remote != nil {
		return openai.New(openai.ServiceUnavailable, "The remote `"+f.PublicName().Short()+"` does not answer now: "+f.Failure.Reason)
	}
	return openai.New(openai.ModelLoadFailed, "The model `"+f.PublicName().Short()+"` could not be loaded: "+f.Failure.Reason)
}

// blockedError is the error of a function for which waiting does not help: its team has
// reached its quota or spent its budget, or no node can ever hold it; nil for others.
func blockedError(f *snapshot.Snapshot, now time.Time) *openai.Error {
	switch {
	case f.Blocked == nil:
		return nil
	case f.Blocked.Final:
		return openai.New(openai.ModelLoadFailed, "The model `"+f.PublicName().Short()+"` cannot be loaded here: "+f.Blocked.Message+".")
	case f.Blocked.Code == snapshot.BudgetSpent:
		return openai.New(openai.InsufficientQuota, f.Blocked.Message)
	case f.Blocked.Code != snapshot.QuotaExceeded:
		return nil
	}
	e := openai.New(openai.GPUQuotaExceeded, f.Blocked.Message)
	if left := f.Blocked.Remaining(now); left > 0 {
		e.RetryAfter = jitter(min(left, openai.MaxRetryAfter))
	}
	return e
}

// loadingError is the 503 of a model that is not ready, with its expected time as
// Retry-After.
func loadingError(f *snapshot.Snapshot, now time.Time) *openai.Error {
	state := f.State
	left := LikelyETA(f, now)
	name := f.PublicName().Short()
	text := "The model `" + name + "` is not loaded yet (" + state.Word() + ")."
	if f.Blocked != nil && f.Blocked.Message != "" {
		text = "The model `" + name + "` cannot be loaded at present: " + f.Blocked.Message + "."
	}
	if left > 0 {
		text += " It should be ready in about " + strconv.Itoa(wholeSeconds(left)) + " s."
	}
	e := openai.New(openai.ModelLoading, text)
	if left >= 0 {
		e.RetryAfter = jitter(min(left, 50*time.Second))
	}
	percent := -1
	if f.Starting() {
		percent = f.Progress.Percent
	}
	e.Thaw = &openai.Detail{Phase: state.Word(), Progress: percent, ETA: left}
	return e
}

// jitter spreads d by a tenth either way, never below a second.
func jitter(d time.Duration) time.Duration {
	return max(time.Second, time.Duration(float64(d)*(0.9+0.2*rand.Float64())))
}

func wholeSeconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// QueueFullError answers a request that there is no room for.
func QueueFullError() *openai.Error {
	return openai.New(openai.QueueFull, "").After(time.Second + time.Duration(rand.Int64N(int64(9*time.Second))))
}

// MaxWait is how long a request for a model may wait: the model's bound, or the
// client's where that is shorter. A nil model has the default bound.
func MaxWait(m *functions.Model, t ClientTimeouts) time.Duration {
	wait := 5 * time.Minute
	if m != nil && m.Spec.Queue.Wait > 0 {
		wait = m.Spec.Queue.Wait.Std()
	}
	if t.Wait > 0 {
		wait = min(wait, t.Wait)
	}
	return wait
}
