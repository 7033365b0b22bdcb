package compositions

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/compose"
	"github.com/thaw-dev/thaw/functions/openai"
)

// appendHead appends what an answer, or a chunk of one, begins with, up to its choices.
func (r *run) appendHead(b []byte, object string) []byte {
	b = appendText(append(b, `{"id":`...), r.id)
	b = append(append(append(b, `,"object":"`...), object...), `","created":`...)
	b = strconv.AppendInt(b, r.began.Unix(), 10)
	b = appendText(append(b, `,"model":`...), r.name)
	return append(b, `,"choices":[`...)
}

func (r *run) plainAnswer(result *compose.Result) []byte {
	b := r.appendHead(make([]byte, 0, 1024+len(result.Text)), "chat.completion")
	b = appendText(append(b, `{"index":0,"message":{"role":"assistant","content":`...), result.Text)
	if len(r.steps) > 0 {
		b = appendText(append(b, `,"reasoning_content":`...), string(r.steps))
	}
	b = append(b, `},"logprobs":null,"finish_reason":`...)
	b = append(appendText(b, r.finishReason()), "}]"...)
	b = r.appendThaw(appendUsage(b, result.Usage))
	return append(b, '}')
}

// finishReason is that of the synthesis.
func (r *run) finishReason() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return cmp.Or(r.finish, "stop")
}

func appendUsage(b []byte, u compose.Usage) []byte {
	return openai.Usage{Prompt: u.Prompt, Completion: u.Completion}.Append(append(b, `,"usage":`...))
}

// appendThaw appends the member thaw: which calls were made, and what came of them.
func (r *run) appendThaw(b []byte) []byte {
	rec := r.recordNow()
	rec.ID, rec.Time, rec.Code, rec.Seconds = "", "", 0, 0 // the head of the answer has them
	out, err := json.Marshal(rec)
	if err != nil {
		return b // a price beyond all numbers made a cost that is none
	}
	return append(append(b, `,"thaw":`...), out...)
}

// appendChunk appends a chunk with a delta, which is JSON. reason "" is none yet; thaw adds
// the calls.
func (r *run) appendChunk(b []byte, delta, reason string, thaw bool) []byte {
	b = r.appendHead(append(b, "data: "...), "chat.completion.chunk")
	b = append(append(b, `{"index":0,"delta":`...), delta...)
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	if reason == "" {
		b = append(b, "null}]"...)
	} else {
		b = append(appendText(b, reason), "}]"...)
	}
	if thaw {
		b = r.appendThaw(b)
	}
	return append(b, "}\n\n"...)
}

// appendUsageChunk appends the chunk that a client asks for by stream_options.
func (r *run) appendUsageChunk(b []byte, u compose.Usage) []byte {
	b = append(r.appendHead(append(b, "data: "...), "chat.completion.chunk"), ']')
	return append(r.appendThaw(appendUsage(b, u)), "}\n\n"...)
}

func delta(key, text string) string {
	b := append(append([]byte(`{"`), key...), `":`...)
	return string(append(appendText(b, text), '}'))
}

// writeContent passes on a part of the synthesis.
func (r *run) writeContent(part string) error {
	if r.out == nil {
		return nil
	}
	r.mu.Lock()
	first := !r.content
	if r.content = true; first {
		r.first = r.s.o.Now().Sub(r.began)
	}
	r.mu.Unlock()
	var b []byte
	if first {
		b = r.appendChunk(b, `{"role":"assistant","content":""}`, "", false)
	}
	return r.out.write(r.appendChunk(b, delta("content", part), "", false), true)
}

// onEvent shows progress, and starts members where a call has left room. The run calls it from one goroutine.
func (r *run) onEvent(e compose.Event) {
	if e.Kind == compose.EventWait {
		r.places.Use(e.Busy)
		r.startNext(e.Next, true)
		return
	}
	if e.Over && r.s.o.Release != nil {
		if f := r.state(e.Member); f.Model {
			r.s.o.Release(f.Name)
		}
	}
	show := r.q.Composition.Spec.Show
	if show == functions.ShowSteps && e.Kind == compose.EventEnd && !e.Final && e.Err == nil {
		r.writeStep(&e)
	}
	if show != functions.ShowProgress || r.out == nil {
		return
	}
	var words []string
	add := func(key, value string) {
		if value != "" && value != "0" {
			words = append(words, key+"="+value)
		}
	}
	switch e.Kind {
	case compose.EventBegin:
		add("state", "asking")
	case compose.EventEnd:
		if e.Reason != "" {
			return // the next event says it
		}
		if e.Err != nil {
			add("state", "missing")
		} else {
			add("state", "answered")
		}
		add("ms", strconv.FormatInt(e.Took.Milliseconds(), 10))
	case compose.EventLeftOut:
		add("state", "left_out")
		add("reason", strings.ReplaceAll(strings.ReplaceAll(string(e.Reason), ": ", "_"), " ", "_"))
	case compose.EventPlan:
		add("state", "planned")
		add("steps", strconv.Itoa(len(e.Steps)))
		if e.Err != nil {
			add("plan", "replaced")
		}
	case compose.EventAgreement:
		add("state", "compared")
		add("answers", strconv.Itoa(e.Agreement.Answers))
		add("agree", strconv.Itoa(e.Agreement.Agree))
	case compose.EventReplaced:
		add("state", "replaced")
	default:
		return
	}
	add("member", e.Member)
	add("role", e.Role)
	add("step", e.Step)
	add("round", strconv.Itoa(e.Round))
	r.out.write([]byte(": thaw "+strings.Join(words, " ")+"\n"), false)
}

// writeStep shows a member's answer as reasoning.
func (r *run) writeStep(e *compose.Event) {
	title := e.Member + " (" + e.Role
	if e.Step != "" {
		title += " " + e.Step
	}
	if e.Round > 1 {
		title += fmt.Sprintf(", round %d", e.Round)
	}
	step := title + "):\n" + strings.ToValidUTF8(e.Text, "\uFFFD") + "\n\n"
	if r.out == nil {
		r.steps = append(r.steps, step...)
		return
	}
	r.out.write(r.appendChunk(nil, delta("reasoning_content", step), "", false), true)
}

// memberComment passes on the progress of a member that starts.
func (r *run) memberComment(member string, line []byte) {
	// which ends a line too
	if r.out != nil && r.q.Composition.Spec.Show == functions.ShowProgress && strings.HasPrefix(string(line), ": thaw ") &&
		bytes.IndexByte(line, '\r') < 0 {
		r.out.write([]byte(string(line)+" member="+member+"\n"), false)
	}
}

// commentPeriod is the period of comments for a client that bears a gap; 0: it names none.
func commentPeriod(period, gap time.Duration) time.Duration {
	if gap > 0 {
		return min(period, max(gap/3, 100*time.Millisecond))
	}
	return period
}
