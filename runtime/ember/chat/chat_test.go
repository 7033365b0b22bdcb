package chat

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var talk = []Message{{"system", "Be brief."}, {"user", " Hi "}, {"assistant", "Hello"}, {"user", "Bye"}}

func TestRender(t *testing.T) {
	now := time.Date(2027, 3, 9, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		t    Template
		ms   []Message
		want string
	}{
		{"chatml", Template{Family: ChatML}, talk, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"},
		{"chatml, own system", Template{Family: ChatML, System: "S"}, talk[1:2], "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n"},
		{"chatml, system given", Template{Family: ChatML, System: "S"}, talk[:2], "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n"},
		{"llama3", Template{Family: Llama3, BOS: "<|b|>"}, talk[:2], "<|b|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
		{"llama3.1", Template{Family: Llama3, BOS: "<|b|>", Dated: true}, talk[1:2], "<|b|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
		{"llama3.2", Template{Family: Llama3, Dated: true, Today: true}, talk[:1], "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 09 Mar 2027\n\nBe brief.<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
		{"llama2", Template{Family: Llama2, BOS: "<s>", EOS: "</s>"}, talk, "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello </s><s>[INST] Bye [/INST]"},
		{"mistral", Template{Family: Mistral, BOS: "<s>", EOS: "</s>"}, talk[1:], "<s>[INST] Hi [/INST] Hello</s>[INST] Bye [/INST]"},
		{"plain", Template{Family: Plain}, talk[1:2], "user:  Hi \nassistant:"},
	} {
		got, err := c.t.Render(c.ms, now)
		if err != nil || got != c.want {
			t.Errorf("%s: %v\n got %q\nwant %q", c.name, err, got, c.want)
		}
	}
	if _, err := (&Template{Family: Llama2}).Render([]Message{{"user", "a"}, {"user", "b"}}, now); err == nil {
		t.Error("two users in a row went through")
	}
}

func TestLoad(t *testing.T) {
	config := func(template any) string {
		b, _ := json.Marshal(map[string]any{"chat_template": template, "bos_token": map[string]any{"content": "<b>"}, "eos_token": "<e>"})
		return string(b)
	}
	qwen := "{%- if tools %}{{- '<|im_start|>system\\n' }}{{- 'x' }}{%- else %}{{- '<|im_start|>system\\nYou are Q.\\nBe " +
		"kind.<|im_end|>\\n' }}{%- endif %}"
	for _, c := range []struct {
		name, config, jinja, family string
		want                        Template
		err                         string
	}{
		{"a processor's file", `{"eos_token":"<e>"}`, "processor", "", Template{Family: Mistral, EOS: "<e>"}, ""},
		{"none", "", "", "", Template{Family: Plain}, ""},
		{"no template", `{"eos_token":"<e>"}`, "", "", Template{Family: Plain, EOS: "<e>"}, ""},
		{"chatml", config("{{'<|im_start|>' + message['role']}}"), "", "", Template{Family: ChatML, BOS: "<b>", EOS: "<e>"}, ""},
		{"chatml with a system of its own", config(qwen), "", "", Template{Family: ChatML, System: "You are Q.\nBe kind.", BOS: "<b>", EOS: "<e>"}, ""},
		{"the file wins", config("{{'<|im_start|>'}}"), "<|start_header_id|> Cutting Knowledge Date strftime_now", "", Template{Family: Llama3, Dated: true, Today: true, BOS: "<b>", EOS: "<e>"}, ""},
		{"list", config([]map[string]string{{"name": "tool", "template": "x"}, {"name": "default", "template": "[INST]"}}), "", "", Template{Family: Mistral, BOS: "<b>", EOS: "<e>"}, ""},
		{"llama2", config("[INST] <<SYS>>"), "", "", Template{Family: Llama2, BOS: "<b>", EOS: "<e>"}, ""},
		{"unknown", config("{{ x }}"), "", "", Template{}, "unknown family"},
		{"unknown, but named", config("{{ x }}"), "", "chatml", Template{Family: ChatML, BOS: "<b>", EOS: "<e>"}, ""},
		{"wrong name", "", "", "alpaca", Template{}, `"alpaca" is not known`},
		{"no JSON", "{", "", "", Template{}, "tokenizer_config.json"},
		{"list without default", config([]map[string]string{{"name": "tool", "template": "x"}}), "", "", Template{}, "no template is named default"},
	} {
		dir := t.TempDir()
		files := map[string]string{"tokenizer_config.json": c.config, "chat_template.jinja": c.jinja}
		if c.jinja == "processor" {
			files["chat_template.jinja"], files["chat_template.json"] = "", `{"chat_template": "[INST]"}`
		}
		for name, text := range files {
			if text != "" {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		got, err := Load(dir, c.family)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %q", c.name, err, c.err)
			}
		} else if err != nil || *got != c.want {
			t.Errorf("%s: %+v %v, want %+v", c.name, got, err, c.want)
		}
	}
}
