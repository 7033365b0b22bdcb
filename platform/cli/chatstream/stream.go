package chatstream

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

const maxEvent = 8 << 20 // bytes of one line of a stream

// Print prints the answer on term.Out and the progress on l. timeline is that of the cold
// start the stream waited for, "" without one.
func Print(term *kit.Terminal, l *kit.ProgressLine, r io.Reader, model string) (answer, timeline string, err error) {
	var b strings.Builder
	beside := asides{term: term}
	err = readStream(r, func(f streamFrame) error {
		switch {
		case f.waiting != nil:
			l.Show(f.waiting.state, f.waiting.text(model))
		case f.timeline != "":
			timeline = f.timeline
		case f.aside != nil:
			l.Clear()
			return beside.add(f.aside)
		case f.text != "":
			l.Clear()
			beside.endReasoning()
			text := f.text
			if term.OutTTY {
				text = kit.Readable(text)
			}
			if _, err := io.WriteString(term.Out, text); err != nil {
				return err
			}
			b.WriteString(f.text)
		}
		return nil
	})
	l.Clear()
	beside.endReasoning()
	if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
		fmt.Fprintln(term.Out)
	}
	if aerr := beside.finish(b.Len() > 0); err == nil {
		err = aerr
	}
	return b.String(), timeline, err
}

// ServerTiming is the header's "queue;dur=0.4, stage;dur=12" as a timeline.
func ServerTiming(header string) string {
	return formatPhases(strings.Split(header, ","), ";dur=")
}

// formatPhases is a timeline for people; each part is a phase, the separator, and
// milliseconds.
func formatPhases(timed []string, separator string) string {
	var parts []string
	for _, part := range timed {
		name, dur, ok := strings.Cut(strings.TrimSpace(part), separator)
		ms, err := strconv.ParseFloat(dur, 64)
		if ok && err == nil {
			parts = append(parts, name+" "+kit.Span(time.Duration(ms*float64(time.Millisecond))))
		}
	}
	return strings.Join(parts, ", ")
}

// streamFrame is one event of a stream; exactly one field is set.
type streamFrame struct {
	waiting  *waiting
	timeline string
	text     string
	aside    *aside
}

// waiting is a comment on a held stream.
type waiting struct {
	state, why             string
	member                 string // of a Composition
	percent, eta, position int    // -1 where nothing is known
}

func (w *waiting) text(model string) string {
	s := model + " " + w.state
	if w.member != "" {
		s = model + ": " + w.member + " " + w.state
	}
	if w.percent >= 0 {
		s += fmt.Sprintf(" %s %d%%", kit.Bar(w.percent), w.percent)
	}
	if w.eta >= 0 {
		s += " eta " + kit.Span(time.Duration(w.eta)*time.Second)
	}
	if w.why != "" {
		s += ": " + w.why
	}
	if w.position > 0 {
		s += fmt.Sprintf(", number %d in line", w.position)
	}
	return s
}

// parseComment reads ": thaw state=staging percent=41 eta_s=12 position=3",
// ": thaw state=blocked why=it needs 1 GPU" and ": thaw timeline queue=…"; anything else is
// no news.
func parseComment(text string) (streamFrame, bool) {
	text, why, _ := strings.Cut(text, " why=")
	words := strings.Fields(text)
	if len(words) < 2 || words[0] != "thaw" {
		return streamFrame{}, false
	}
	if words[1] == "timeline" {
		return streamFrame{timeline: formatPhases(words[2:], "=")}, true
	}
	w := &waiting{why: why, percent: -1, eta: -1, position: -1}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		n, err := strconv.Atoi(value)
		switch {
		case key == "state":
			w.state = value
		case key == "member":
			w.member = value
		case err != nil:
		case key == "percent":
			w.percent = n
		case key == "eta_s":
			w.eta = n
		case key == "position":
			w.position = n
		}
	}
	return streamFrame{waiting: w}, w.state != ""
}

// ErrCut: a stream that ends without saying that it is over was cut.
var ErrCut = errors.New("the stream broke off before the answer was whole")

// readStream reads server-sent events until the end. An error frame, and an end
// without [DONE], is an error.
func readStream(r io.Reader, handle func(streamFrame) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEvent)
	finished := false
	for lines.Scan() {
		line := lines.Text()
		if text, ok := strings.CutPrefix(line, ":"); ok {
			if f, ok := parseComment(text); ok {
				if err := handle(f); err != nil {
					return err
				}
			}
			continue
		}
		data, ok := strings.CutPrefix(line, "data:")
		if !ok {
			continue
		}
		data = strings.TrimSpace(data)
		if data == "[DONE]" {
			return nil
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string
					aside
				} `json:"delta"`
				FinishReason string `json:"finish_reason"`
			} `json:"choices"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return fmt.Errorf("the stream is not what OpenAI's clients read: %w", err)
		}
		if e := api.ErrorOf(502, chunk.Error); e != nil {
			e.Message = cmp.Or(e.Message, string(chunk.Error))
			return e
		}
		for _, choice := range chunk.Choices {
			finished = finished || choice.FinishReason != ""
			if !choice.Delta.isEmpty() {
				if err := handle(streamFrame{aside: &choice.Delta.aside}); err != nil {
					return err
				}
			}
			if choice.Delta.Content != "" {
				if err := handle(streamFrame{text: choice.Delta.Content}); err != nil {
					return err
				}
			}
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !finished {
		return ErrCut
	}
	return nil
}
