package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// ParseTimeouts reads how long the client waits. For a stream, the timeouts of the
// official clients bound the gap between bytes, not the wait.
func ParseTimeouts(header func(string) string, stream bool) ClientTimeouts {
	var p ClientTimeouts
	shorter := func(d time.Duration, ok bool) {
		if ok && (p.Wait == 0 || d < p.Wait) {
			p.Wait = d
		}
	}
	own := func(d time.Duration, ok bool) { shorter(beforeTimeout(d), ok) }
	shorter(ParseSpan(header("thaw-max-wait")))
	own(ParseSpan(header("Request-Timeout")))
	total, okTotal := ParseSpan(header("X-Stainless-Timeout"))
	gap, okGap := ParseSpan(header("X-Stainless-Read-Timeout"))
	if stream {
		if okGap {
			p.Gap = gap
		}
	} else {
		own(total, okTotal)
		own(gap, okGap)
	}
	p.NoWake = strings.EqualFold(header("thaw-warm"), "never")
	return p
}

// MaxSession is the most bytes of a session's name.
const MaxSession = 256

// CheckHeaders refuses a wrong value of the request headers of thaw that set how a request
// waits and where it goes: it would be ignored.
func CheckHeaders(header func(string) string) *openai.Error {
	refuse := func(name, want string) *openai.Error {
		return openai.New(openai.InvalidValue, "The header "+name+" is "+want+", not `"+functions.Clip(header(name))+"`.").With(name)
	}
	if h := header("thaw-max-wait"); h != "" {
		if _, ok := ParseSpan(h); !ok {
			return refuse("thaw-max-wait", "seconds above 0 such as 30 or 0.5, or a duration such as 30s")
		}
	}
	if h := header("thaw-cold"); h != "" && !slices.Contains(functions.ColdPolicies, functions.ColdPolicy(h)) {
		return refuse("thaw-cold", "wait, other or hedge")
	}
	if h := header("thaw-warm"); h != "" && !strings.EqualFold(h, "never") {
		return refuse("thaw-warm", "never, or is left out")
	}
	if len(header("thaw-session")) > MaxSession {
		return refuse("thaw-session", fmt.Sprintf("text of up to %d bytes", MaxSession))
	}
	return nil
}

// OfficialTimeout is after how long an official client sends a plain request again, by the
// shorter of its two timeouts; 0 if it names none.
func OfficialTimeout(header func(string) string) time.Duration {
	total, _ := ParseSpan(header("X-Stainless-Timeout"))
	if gap, ok := ParseSpan(header("X-Stainless-Read-Timeout")); ok && (total == 0 || gap < total) {
		return gap
	}
	return total
}

// beforeTimeout returns the wait after which a client with the timeout d is answered: its
// clock began before the request arrived, and an answer at the same instant is lost.
func beforeTimeout(d time.Duration) time.Duration {
	return max(d/2, d-max(250*time.Millisecond, min(2*time.Second, d/20)))
}

// ParseSpan reads seconds as clients send them (600, 60.0), or a Go duration (30s);
// false for anything else.
func ParseSpan(s string) (time.Duration, bool) {
	if s == "" || len(s) > 24 {
		return 0, false
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		if f > 0 && f < 1e8 {
			return max(1, time.Duration(f*float64(time.Second))), true
		}
		return 0, false
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return d, true
	}
	return 0, false
}

// Blocked is the state of a function that no node takes now, as people see it.
const Blocked = "blocked"

// StateWord is the state of f as people see it, and why it is blocked, or what holds its start up.
func StateWord(f *snapshot.Snapshot) (state, reason string) {
	if f.Blocked != nil && len(f.Replicas) == 0 {
		return Blocked, f.Blocked.Message
	}
	if f.Starting() && f.ColdStart != nil {
		reason = f.ColdStart.Problem()
	}
	return f.State.Word(), reason
}

// HeldComment appends the comment of a held stream.
func HeldComment(b []byte, f *snapshot.Snapshot, now time.Time, position int) []byte {
	percent, left := -1, LikelyETA(f, now)
	state, reason := StateWord(f)
	switch {
	case len(f.Replicas) > 0:
		state, left = functions.Ready.Word(), -1
	case f.Starting():
		percent = f.Progress.Percent
	}
	position = cmp.Or(position, -1)
	b = openai.Comment(b, state, percent, left, position)
	if reason != "" {
		b = openai.AppendReason(b, reason)
	}
	return b
}
