package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/chatstream"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

// message is one turn of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type chatRequest struct {
	Model       string    `json:"model"`
	Stream      bool      `json:"stream"`
	Messages    []message `json:"messages"`
	MaxTokens   int       `json:"max_tokens,omitempty"`
	Temperature *float64  `json:"temperature,omitempty"`
	Seed        *int      `json:"seed,omitempty"`
}

const maxPrompt = 8 << 20 // of a prompt that is piped in

func (m modelVerbs) run() *cobra.Command {
	c := chat{Terminal: m.Terminal, withHint: m.withHint}
	a := &c.request
	var system string
	var temperature float64
	var seed int
	cmd := &cobra.Command{
		Use: "run NAME [PROMPT]", Short: "Chat with a model, cold or not", GroupID: "use",
		Long: `Chat with a model at the terminal. While a model at rest wakes, its progress is
shown; then the answer streams. Text that is piped in is the prompt; with a PROMPT too it
comes first, then a blank line, then PROMPT (< /dev/null pipes nothing in). At a terminal,
without a prompt, it is asked for turn by turn; Ctrl-D ends the chat, and - reads one
prompt up to Ctrl-D. What a model reasons is dimmed on a terminal
and not part of the answer in a pipe; calls of tools are printed as NAME(ARGUMENTS), and a
refusal is an error.`,
		Example: `  thaw run tiny "What is thaw?"
  thaw run tiny
  thaw run ml/llama --system "Answer in one word." < question.txt
  git diff | thaw run tiny "What does this change?"`,
		Args:              kit.UpToArgs("the name of a model", 0),
		ValidArgsFunction: m.completeNames,
	}
	cmd.RunE = m.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
		c.client, a.Model, a.Stream = cl, args[0], true
		if n, err := m.name(ctx, cl, args[0]); err == nil {
			a.Model = tables.ShortName(n.String())
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
		if prompt == "-" || !kit.IsTTY(m.In) {
			piped, err := c.piped(ctx)
			if err != nil {
				return err
			}
			if prompt == "-" {
				prompt = ""
			}
			prompt = strings.TrimSpace(piped + "\n\n" + prompt)
		}
		if prompt != "" {
			_, err := c.ask(ctx, prompt)
			return err
		}
		if m.NoInput || !kit.IsTTY(m.In) {
			return kit.Usage(`thaw run NAME "PROMPT"`, "there is no prompt")
		}
		return c.turns(ctx)
	})
	cmd.Flags().StringVar(&system, "system", "", "instructions before the first turn")
	cmd.Flags().IntVar(&a.MaxTokens, "max-tokens", 0, "end an answer after so many tokens; 0 is the engine's own bound")
	cmd.Flags().Float64Var(&temperature, "temperature", 0, "sampling temperature; the engine's default if not set")
	cmd.Flags().IntVar(&seed, "seed", 0, "the same seed, the same answer, where the engine can")
	return cmd
}

// chat is a chat with one model at a terminal.
type chat struct {
	*kit.Terminal
	withHint func(*api.Client, error) error
	client   *api.Client
	request  chatRequest // of the next turn, with all turns before
}

// silentStdin is how long stdin may stay open before its reader says that it waits for it.
const silentStdin = 3 * time.Second

// piped reads stdin up to its end.
func (c *chat) piped(ctx context.Context) (string, error) {
	type result struct {
		text []byte
		err  error
	}
	came := make(chan result, 1)
	// A read cannot be called off: the goroutine ends with the process or with stdin.
	go func() {
		b, err := kit.ReadBounded(c.In, "-", maxPrompt)
		came <- result{b, err}
	}()
	silent := time.NewTimer(silentStdin)
	defer silent.Stop()
	for {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-silent.C:
			c.Remark("waiting for the end of stdin, which is part of the prompt; < /dev/null leaves it out")
		case r := <-came:
			if errors.Is(r.err, syscall.EBADF) { // stdin is open for writing alone, as nohup leaves it
				return "", nil
			}
			if len(r.text) > maxPrompt {
				return "", kit.Usage("pipe less in", "stdin holds more than the %s that a prompt may have", functions.Bytes(maxPrompt))
			}
			return strings.TrimSpace(string(r.text)), r.err
		}
	}
}

// checkText refuses what JSON would send with other bytes than were given, and binary data.
func checkText(messages []message) error {
	for _, m := range messages {
		for at, r := range m.Content {
			_, size := utf8.DecodeRuneInString(m.Content[at:])
			if r == 0 || r == utf8.RuneError && size == 1 {
				return kit.Usage("convert text to UTF-8 first (iconv -f LATIN1 -t UTF-8); images and audio go to /v1/chat/completions as base64",
					"the %s prompt is not UTF-8 text: byte %#x at offset %d", m.Role, m.Content[at], at)
			}
		}
	}
	return nil
}

// turns asks for prompts until their end.
func (c *chat) turns(ctx context.Context) error {
	c.Remark("chatting with %s; Ctrl-D ends", c.request.Model)
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
		answer, err := c.ask(ctx, prompt)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			// One turn failed; the chat goes on without it.
			c.Report(ctx, c.withHint(c.client, err))
			c.request.Messages = c.request.Messages[:len(c.request.Messages)-1]
			continue
		}
		c.request.Messages = append(c.request.Messages, message{"assistant", answer})
	}
}

// ask adds a prompt to the request, sends it and streams the answer to stdout.
func (c *chat) ask(ctx context.Context, prompt string) (answer string, err error) {
	c.request.Messages = append(c.request.Messages, message{"user", prompt})
	if err := checkText(c.request.Messages); err != nil {
		return "", err
	}
	body, err := json.Marshal(c.request)
	if err != nil {
		return "", err
	}
	l := c.NewProgressLine()
	defer l.Clear()
	res, err := c.send(ctx, l, body)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if kind := res.Header.Get("Content-Type"); kind != "" && !strings.HasPrefix(kind, "text/event-stream") {
		return "", c.client.NotThaw(fmt.Sprintf("with %q", functions.Clip(kind)))
	}
	answer, timeline, err := chatstream.Print(c.Terminal, l, res.Body, c.request.Model)
	if timeline == "" && res.Header.Get("thaw-cold-start") != "" {
		timeline = chatstream.ServerTiming(res.Header.Get("Server-Timing"))
	}
	if timeline != "" {
		c.Remark("cold start: %s", timeline)
	}
	return answer, err
}

// headEvery is how often the progress of a request without a head is asked for.
const headEvery = 250 * time.Millisecond

// send sends a request and waits for its head. A stream's head comes when the
// answer does or after some seconds of waiting, whichever is first; until then
// the progress is asked for beside it, by the request's own id.
func (c *chat) send(ctx context.Context, l *kit.ProgressLine, body []byte) (*http.Response, error) {
	id := "thaw-run-" + rand.Text()
	type head struct {
		res *http.Response
		err error
	}
	came := make(chan head, 1)
	go func() {
		res, err := c.client.Do(ctx, "POST", "/v1/chat/completions",
			http.Header{"Content-Type": {"application/json"}, "X-Client-Request-Id": {id}}, body)
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
			if t, err := c.client.ColdStart(ctx, id); err == nil && !t.State.Over() && t.State != functions.Ready {
				if name, err := functions.ParseName(t.Function, ""); err == nil {
					if state, text, err := describeStart(ctx, c.client, name, t, r.Add(c.Now(), t.Progress.Bytes)); err == nil {
						l.Show(state, text)
					}
				}
			}
		}
	}
}
