package chatstream

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// aside is what a part of an answer holds beside its text. Engines name reasoning by
// either of two names.
type aside struct {
	Reasoning  string `json:"reasoning"`
	Reasoning2 string `json:"reasoning_content"`
	Refusal    string `json:"refusal"`
	Tools      []struct {
		Index    int `json:"index"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

func (a *aside) reasoning() string {
	return cmp.Or(a.Reasoning, a.Reasoning2)
}

func (a *aside) isEmpty() bool { return a.reasoning() == "" && a.Refusal == "" && len(a.Tools) == 0 }

// maxTools bounds the calls of tools that are kept of one answer.
const maxTools = 128

// asides shows what an answer holds beside its text.
type asides struct {
	term      *kit.Terminal
	reasoned  int  // bytes
	dimmed    bool // the terminal is in the middle of reasoning
	refusal   strings.Builder
	calls     []*toolCall
	lineEnded bool
}

type toolCall struct {
	index           int
	name, arguments strings.Builder
}

// add shows reasoning on a terminal, and keeps the rest for finish.
func (a *asides) add(x *aside) error {
	a.refusal.WriteString(x.Refusal)
	for _, t := range x.Tools {
		n := len(a.calls)
		for n > 0 && a.calls[n-1].index != t.Index {
			n--
		}
		if n == 0 {
			if len(a.calls) == maxTools {
				return fmt.Errorf("the answer calls more than %d tools", maxTools)
			}
			a.calls = append(a.calls, &toolCall{index: t.Index})
			n = len(a.calls)
		}
		a.calls[n-1].name.WriteString(t.Function.Name)
		a.calls[n-1].arguments.WriteString(t.Function.Arguments)
	}
	text := x.reasoning()
	if a.reasoned += len(text); text == "" || !a.term.OutTTY {
		return nil
	}
	a.dimmed, a.lineEnded = true, strings.HasSuffix(text, "\n")
	_, err := io.WriteString(a.term.Out, a.term.Dim(kit.Readable(text)))
	return err
}

// endReasoning begins a line for what follows reasoning.
func (a *asides) endReasoning() {
	if a.dimmed && !a.lineEnded {
		fmt.Fprintln(a.term.Out)
	}
	a.dimmed = false
}

// finish prints the calls of tools. A refusal is an error; an answer without text is named.
func (a *asides) finish(hasText bool) error {
	for i := range a.calls {
		line := a.calls[i].name.String() + "(" + a.calls[i].arguments.String() + ")"
		if a.term.OutTTY {
			line = kit.Plain(line)
		}
		fmt.Fprintln(a.term.Out, line)
	}
	if a.refusal.Len() > 0 {
		return &kit.Error{Exit: kit.ExitFailed, What: "the model refused: " + kit.Plain(a.refusal.String())}
	}
	if !hasText && len(a.calls) == 0 && a.reasoned > 0 {
		a.term.Remark("the answer has no text: it is %d bytes of reasoning alone; a larger --max-tokens may bring one", a.reasoned)
	}
	return nil
}
