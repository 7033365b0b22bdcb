// Package chat renders chat messages into a model's prompt in one of five formats written in Go
// (ChatML, Llama 2, Llama 3, Mistral, plain), chosen by marks in its Jinja template, which is not
// run, or by name; a model without a template gets the plain one, and an unknown template is an
// error.
//
// A checkpoint's template is a Jinja program. The engine does not run it: it recognises
// the family by the marks in the template and renders that family in Go. An unknown
// family is an error at load; an operator may name one instead. A checkpoint without a
// template has the plain form.
//
// Message texts are not escaped: marks inside them become special tokens, as with
// Hugging Face's own rendering and in vLLM.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions/pythonjson"
)

// Family is a format of conversations.
type Family string

const (
	Plain   Family = "plain"   // role: text, one per line
	ChatML  Family = "chatml"  // <|im_start|>role … <|im_end|> (Qwen2, SmolLM, …)
	Llama3  Family = "llama3"  // <|start_header_id|>role<|end_header_id|> … <|eot_id|>
	Llama2  Family = "llama2"  // [INST] <<SYS>> … [/INST]
	Mistral Family = "mistral" // [INST] … [/INST], no system mark
)

// Families are the names that an operator may use.
var families = []Family{Plain, ChatML, Llama3, Llama2, Mistral}

// Template renders one checkpoint's conversations.
type Template struct {
	Family Family
	// System is the default system message.
	System string
	// BOS and EOS are the texts of those tokens, which Llama 2 and 3 write.
	BOS, EOS string
	// Dated adds Llama 3.1's date lines to the system message; Today uses the current
	// date instead of the template's.
	Dated, Today bool
}

type Message struct {
	Role    string
	Content string
}

const maxConfig = 16 << 20

// Load reads the template of a checkpoint's folder: chat_template.jinja, else the
// chat_template of tokenizer_config.json. family, if not "", replaces it.
func Load(dir, family string) (*Template, error) {
	text, bos, eos, err := readTemplate(dir)
	if err != nil {
		return nil, err
	}
	t := &Template{Family: Plain, BOS: bos, EOS: eos}
	if text != "" {
		t.detect(text)
	}
	if family != "" {
		for _, f := range families {
			if string(f) == family {
				t.Family = f
				return t, nil
			}
		}
		return nil, fmt.Errorf("chat template %q is not known (known: %v)", family, families)
	}
	if t.Family == "" {
		return nil, fmt.Errorf("%s: chat template of an unknown family (known: ChatML, Llama 3, Llama 2, Mistral); ember runs no templates: "+
			"args: [--chat-template, chatml] names one of %v", dir, families)
	}
	return t, nil
}

func (t *Template) detect(text string) {
	switch {
	case strings.Contains(text, "<|im_start|>"):
		t.Family = ChatML
		t.System = defaultSystem(text)
	case strings.Contains(text, "<|start_header_id|>"):
		t.Family = Llama3
		t.Dated = strings.Contains(text, "Cutting Knowledge Date")
		t.Today = strings.Contains(text, "strftime_now")
	case strings.Contains(text, "[INST]") && strings.Contains(text, "<<SYS>>"):
		t.Family = Llama2
	case strings.Contains(text, "[INST]"):
		t.Family = Mistral
	default:
		t.Family = ""
	}
}

// defaultSystem finds the default system message of a ChatML template: a literal
// between its marks.
func defaultSystem(text string) string {
	const end = "<|im_end|>"
	for _, start := range []string{"<|im_start|>system\n", `<|im_start|>system\n`} {
		rest := text
		for {
			_, after, ok := strings.Cut(rest, start)
			if !ok {
				break
			}
			rest = after
			body, _, ok := strings.Cut(after, end)
			if ok && body != "" && !strings.ContainsAny(body, `'"{}+`) {
				return strings.ReplaceAll(body, `\n`, "\n")
			}
		}
	}
	return ""
}

func readTemplate(dir string) (text, bos, eos string, err error) {
	var f struct {
		Template json.RawMessage `json:"chat_template"`
		BOS      json.RawMessage `json:"bos_token"`
		EOS      json.RawMessage `json:"eos_token"`
	}
	config := filepath.Join(dir, "tokenizer_config.json")
	if err := pythonjson.ReadFile(config, maxConfig, &f); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", "", "", fmt.Errorf("%s: %w", config, err)
	}
	j, err := readSmallFile(filepath.Join(dir, "chat_template.jinja"))
	if err != nil {
		return "", "", "", err
	}
	if text = string(j); text == "" && len(f.Template) == 0 { // processors keep theirs in a file of its own
		err = pythonjson.ReadFile(filepath.Join(dir, "chat_template.json"), maxConfig, &f)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", "", "", fmt.Errorf("%s: %w", filepath.Join(dir, "chat_template.json"), err)
		}
	}
	if text == "" {
		if text, err = namedTemplate(f.Template); err != nil {
			return "", "", "", fmt.Errorf("%s: chat_template: %w", config, err)
		}
	}
	return text, tokenText(f.BOS), tokenText(f.EOS), nil
}

func readSmallFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if st.Size() > maxConfig {
		return nil, fmt.Errorf("%s: %d bytes are too many", path, st.Size())
	}
	return os.ReadFile(path)
}

// namedTemplate reads a template: a string, or the entry "default" of a list.
func namedTemplate(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var l []struct{ Name, Template string }
	if json.Unmarshal(raw, &l) != nil {
		return "", errors.New("is neither a text nor a list of templates, each with name and template")
	}
	var names []string
	for _, e := range l {
		if e.Name == "default" {
			return e.Template, nil
		}
		names = append(names, e.Name)
	}
	return "", fmt.Errorf("no template is named default (there are: %s)", strings.Join(names, ", "))
}

// tokenText reads a token's text: a string, or an object with content.
func tokenText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var o struct{ Content string }
	if json.Unmarshal(raw, &o) == nil {
		return o.Content
	}
	return ""
}

// Render writes the conversation, followed by the mark that begins the assistant's message.
// now is for templates with a date.
func (t *Template) Render(ms []Message, now time.Time) (string, error) {
	var b strings.Builder
	switch t.Family {
	case ChatML:
		if t.System != "" && (len(ms) == 0 || ms[0].Role != "system") {
			ms = append([]Message{{"system", t.System}}, ms...)
		}
		for _, m := range ms {
			b.WriteString("<|im_start|>" + m.Role + "\n" + m.Content + "<|im_end|>\n")
		}
		b.WriteString("<|im_start|>assistant\n")
	case Llama3:
		t.llama3(&b, ms, now)
	case Llama2, Mistral:
		if err := t.inst(&b, ms); err != nil {
			return "", err
		}
	default:
		for _, m := range ms {
			b.WriteString(m.Role + ": " + m.Content + "\n")
		}
		b.WriteString("assistant:")
	}
	return b.String(), nil
}

func (t *Template) llama3(b *strings.Builder, ms []Message, now time.Time) {
	turn := func(role, text string) {
		b.WriteString("<|start_header_id|>" + role + "<|end_header_id|>\n\n" + strings.TrimSpace(text) + "<|eot_id|>")
	}
	b.WriteString(t.BOS)
	if t.Dated {
		date := "26 Jul 2024"
		if t.Today {
			date = now.Format("02 Jan 2006")
		}
		system := ""
		if len(ms) > 0 && ms[0].Role == "system" {
			system, ms = ms[0].Content, ms[1:]
		}
		b.WriteString("<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: " +
			date + "\n\n" + strings.TrimSpace(system) + "<|eot_id|>")
	}
	for _, m := range ms {
		turn(m.Role, m.Content)
	}
	b.WriteString("<|start_header_id|>assistant<|end_header_id|>\n\n")
}

// inst writes alternating user and assistant messages, the only roles of Llama 2 and
// Mistral.
func (t *Template) inst(b *strings.Builder, ms []Message) error {
	system := ""
	if len(ms) > 0 && ms[0].Role == "system" {
		system, ms = ms[0].Content, ms[1:]
	}
	if t.Family == Mistral {
		b.WriteString(t.BOS)
	}
	for i, m := range ms {
		if want := []string{"user", "assistant"}[i%2]; m.Role != want {
			return fmt.Errorf("this model's conversations alternate user and assistant: message %d is from %s", i, m.Role)
		}
		text := strings.TrimSpace(m.Content)
		switch {
		case m.Role == "assistant" && t.Family == Llama2:
			b.WriteString(" " + text + " " + t.EOS)
		case m.Role == "assistant":
			b.WriteString(" " + text + t.EOS)
		case t.Family == Llama2:
			if i == 0 && system != "" {
				text = "<<SYS>>\n" + system + "\n<</SYS>>\n\n" + text
			}
			b.WriteString(t.BOS + "[INST] " + text + " [/INST]")
		default:
			if i == 0 && system != "" {
				text = system + "\n\n" + text
			}
			b.WriteString("[INST] " + text + " [/INST]")
		}
	}
	return nil
}
