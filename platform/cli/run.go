package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// message is one turn of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chatRequest is the body of a chat request.
type chatRequest struct {
	Model       string    `json:"model"`
	Stream      bool      `json:"stream"`
	Messages    []message `json:"messages"`
	MaxTokens   int       `json:"max_tokens,omitempty"`
	Temperature *float64  `json:"temperature,omitempty"`
	Seed        *int      `json:"seed,omitempty"`
}

const (
	maxPrompt = 8 << 20 // of a prompt that is piped in
	maxEvent  = 8 << 20 // of one line of a stream
)

func (m modelVerbs) run() *cobra.Command {
	var a chatRequest
	var system string
	var temperature float64
	var seed int
	cmd := &cobra.Command{
		Use: "run NAME [PROMPT]", Short: "Chat with a model, cold or not", GroupID: "use",
		Long: `Chat with a model at the terminal. While a model at rest wakes, its progress is
shown; then the answer streams. Without a prompt, or with -, it is read from stdin, or
asked for turn by turn; Ctrl-D ends the chat. What a model reasons is dimmed on a terminal
and not part of the answer in a pipe; calls of tools are printed as NAME(ARGUMENTS), and a
refusal is an error.`,
		Example: `  thaw run tiny "What is thaw?"
  thaw run tiny
  thaw run ml/llama --system "Answer in one word." < question.txt`,
		Args:              kit.UpToArgs("the name of a model", 0),
		ValidArgsFunction: m.completeNames,
	}
	cmd.RunE = m.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
		a.Model, a.Stream = args[0], true
		if n, err := m.name(ctx, cl, args[0]); err == nil {
			a.Model = shortName(n.String())
		} // else it is the server's to say: it knows more than models
		if cmd.Flags().Changed("temperature") {
			a.Temperature = &temperature
		}
		if cmd.Flags().Changed("seed") {
			a.Seed = &seed
		}
		if system != "" {
			a.Messages = []message{{"system", system}}
		}
		prompt := strings.Join(args[1:], " ")
		if prompt == "-" || prompt == "" && !kit.IsTTY(m.In) {
			b, err := io.ReadAll(io.LimitReader(m.In, maxPrompt))
			if err != nil {
				return err
			}
			prompt = strings.TrimSpace(string(b))
		}
		if prompt != "" {
			a.Messages = append(a.Messages, message{"user", prompt})
			_, err := m.chat(ctx, cl, a)
			return err
		}
		if m.NoInput || !kit.IsTTY(m.In) {
			return kit.Usage(`thaw run NAME "PROMPT"`, "there is no prompt")
		}
		return m.turns(ctx, cl, a)
	})
	cmd.Flags().StringVar(&system, "system", "", "instructions before the first turn")
	cmd.Flags().IntVar(&a.MaxTokens, "max-tokens", 0, "end an answer after so many tokens; 0 is the engine's own bound")
	cmd.Flags().Float64Var(&temperature, "temperature", 0, "sampling temperature; the engine's default if not set")
	cmd.Flags().IntVar(&seed, "seed", 0, "the same seed, the same answer, where the engine can")
	return cmd
}

// turns is a chat of several.
func (c *connection) turns(ctx context.Context, cl *api.Client, a chatRequest) error {
	c.Remark("chatting with %s; Ctrl-D ends", a.Model)
	lines := make(chan string)
	in := bufio.NewScanner(c.In)
	in.Buffer(nil, maxPrompt)
	// A read from a terminal cannot be called off: the goroutine ends with the
	// process or with the next line.
	go func() {
		defer close(lines)
		for in.Scan() {
			select {
			case lines <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		fmt.Fprint(c.Err, c.Bold("> "))
		var prompt string
		select {
		case <-ctx.Done():
			return ctx.Err()
		case text, ok := <-lines:
			if !ok {
				fmt.Fprintln(c.Err)
				return nil
			}
			prompt = strings.TrimSpace(text)
		}
		if prompt == "" {
			continue
		}
		a.Messages = append(a.Messages, message{"user", prompt})
		answer, err := c.chat(ctx, cl, a)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			// One turn failed; the chat goes on without it.
			c.Report(ctx, c.withHint(cl, err))
			a.Messages = a.Messages[:len(a.Messages)-1]
			continue
		}
		a.Messages = append(a.Messages, message{"assistant", answer})
	}
}

// chat sends one request and streams the answer to stdout.
func (c *connection) chat(ctx context.Context, cl *api.Client, a chatRequest) (answer string, err error) {
	body, err := json.Marshal(a)
	if err != nil {
		return "", err
	}
	l := c.NewProgressLine()
	defer l.Clear()
	res, err := c.send(ctx, cl, l, body)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	timeline := ""
	if res.Header.Get("thaw-cold-start") != "" {
		timeline = serverTiming(res.Header.Get("Server-Timing"))
	}
	var b strings.Builder
	beside := asides{c: c}
	err = readStream(res.Body, func(f streamFrame) error {
		switch {
		case f.waiting != nil:
			l.Show(f.waiting.state, f.waiting.text(a.Model))
		case f.timeline != "":
			timeline = f.timeline
		case f.aside != nil:
			l.Clear()
			return beside.add(f.aside)
		case f.text != "":
			l.Clear()
			beside.endReasoning()
			text := f.text
			if c.OutTTY {
				text = kit.Readable(text)
			}
			if _, err := io.WriteString(c.Out, text); err != nil {
				return err
			}
			b.WriteString(f.text)
		}
		return nil
	})
	l.Clear()
	beside.endReasoning()
	if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
		fmt.Fprintln(c.Out)
	}
	if aerr := beside.finish(b.Len() > 0); err == nil {
		err = aerr
	}
	if timeline != "" {
		c.Remark("cold start: %s", timeline)
	}
	return b.String(), err
}

// headEvery is how often the progress of a request without a head is asked for.
const headEvery = 250 * time.Millisecond

// send sends a request and waits for its head. A stream's head comes when the
// answer does or after some seconds of waiting, whichever is first; until then
// the progress is asked for beside it, by the request's own id.
func (c *connection) send(ctx context.Context, cl *api.Client, l *kit.ProgressLine, body []byte) (*http.Response, error) {
	var random [12]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, err
	}
	id := "thaw-run-" + hex.EncodeToString(random[:])
	type head struct {
		res *http.Response
		err error
	}
	came := make(chan head, 1)
	go func() {
		res, err := cl.Do(ctx, "POST", "/v1/chat/completions", http.Header{"Content-Type": {"application/json"}, "X-Client-Request-Id": {id}}, bytes.NewReader(body))
		came <- head{res, err}
	}()
	var r kit.Rate
	tick := time.NewTicker(headEvery)
	defer tick.Stop()
	for {
		select {
		case h := <-came: // always: ctx ends it too
			return h.res, h.err
		case <-tick.C:
			if t, err := cl.ColdStart(ctx, id); err == nil && !t.State.Over() && t.State != functions.Ready {
				if name, err := functions.ParseName(t.Function, ""); err == nil {
					if state, text, err := c.describeStart(ctx, cl, name, t, r.Add(c.Now(), t.Progress.Bytes)); err == nil {
						l.Show(state, text)
					}
				}
			}
		}
	}
}

// serverTiming is the header's "queue;dur=0.4, stage;dur=12" as a timeline.
func serverTiming(header string) string {
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

// errCut: a stream that ends without saying that it is over was cut.
var errCut = errors.New("the stream broke off before the answer was whole")

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
			Error *struct{ Message, Code string } `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return fmt.Errorf("the stream is not what OpenAI's clients read: %w", err)
		}
		if chunk.Error != nil {
			return &api.StatusError{Status: 502, Code: chunk.Error.Code, Message: chunk.Error.Message}
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
		return errCut
	}
	return nil
}
