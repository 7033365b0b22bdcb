package ember

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/thaw-dev/thaw/functions/pythonjson"
	"github.com/thaw-dev/thaw/runtime/ember/bpe"
	"github.com/thaw-dev/thaw/runtime/ember/chat"
	"github.com/thaw-dev/thaw/runtime/ember/llama"
)

// loadedModel is what is loaded from the model's folder.
type loadedModel struct {
	model    *llama.Model
	tok      *bpe.Tokenizer
	template *chat.Template
	eos      []int
	defaults sampling // generation_config.json's
	maxLen   int
}

// loadModel reads the folder. The tokenizer (mostly parsing) and the weights (mostly
// waiting for pages) are read side by side; percent is called with the progress of the weights.
func loadModel(ctx context.Context, o *Options, percent func(int)) (_ *loadedModel, err error) {
	if st, err := os.Stat(o.Model); err != nil {
		return nil, err
	} else if !st.IsDir() {
		return nil, fmt.Errorf("%s is not a folder", o.Model)
	}
	defer func() { // an error of what the folder holds, not of a flag or the machine, begins so
		if _, ofSystem := errors.AsType[syscall.Errno](err); err != nil && !ofSystem && strings.Contains(err.Error(), o.Model) {
			err = fmt.Errorf("checkpoint: %w", err)
		}
	}()
	cfg, err := llama.ReadConfig(o.Model)
	if err != nil {
		return nil, err
	}
	type parsed struct {
		tok *bpe.Tokenizer
		err error
	}
	tokenizer := make(chan parsed, 1)
	go func() { // bounded by the size of the file
		t, err := bpe.Load(filepath.Join(o.Model, "tokenizer.json"))
		if errors.Is(err, os.ErrNotExist) {
			err = noTokenizer(o.Model)
		}
		tokenizer <- parsed{t, err}
	}()
	c := &loadedModel{maxLen: cfg.MaxPos}
	report := func(done, total int64) bool {
		percent(int(done * 100 / total))
		return ctx.Err() == nil
	}
	copies := o.Copy || o.WeightsFrom != ""
	if copies {
		from, end := o.weights(ctx)
		c.model, err = llama.Copy(o.Model, cfg, o.Threads, from, report)
		end()
	} else {
		c.model, err = llama.Open(o.Model, cfg, o.Threads)
	}
	if err != nil {
		<-tokenizer
		return nil, err
	}
	if !copies {
		c.model.Touch(report)
	}
	p := <-tokenizer
	c.tok, err = p.tok, p.err
	if err == nil {
		err = c.rest(o, &cfg)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.model.Close()
		return nil, err
	}
	return c, nil
}

// noTokenizer is the error of a folder without a tokenizer.json.
func noTokenizer(dir string) error {
	for _, other := range []string{"tokenizer.model", "vocab.json"} {
		if _, err := os.Stat(filepath.Join(dir, other)); err == nil {
			return fmt.Errorf("%s has %s and no tokenizer.json, which ember reads alone: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) "+
				"of transformers writes one", dir, other)
		}
	}
	return fmt.Errorf("%s has no tokenizer.json: copy the model's own beside its config.json", dir)
}

func (m *loadedModel) rest(o *Options, cfg *llama.Config) (err error) {
	if m.tok.Size > cfg.Vocab {
		return fmt.Errorf("%s: tokenizer.json has tokens up to %d, config.json's vocab_size is %d: it is another model's, or tokens were "+
			"added that the weights lack", o.Model, m.tok.Size-1, cfg.Vocab)
	}
	if m.template, err = chat.Load(o.Model, o.ChatTemplate); err != nil {
		return err
	}
	if o.MaxLen > cfg.MaxPos {
		return fmt.Errorf("--max-model-len %d is more than the model's %d", o.MaxLen, cfg.MaxPos)
	}
	if o.MaxLen > 0 {
		m.maxLen = o.MaxLen
	}
	m.eos = slices.Clone(cfg.EOS)
	if id, ok := m.tok.Find(m.template.EOS); ok && m.template.EOS != "" {
		m.eos = append(m.eos, id)
	}
	return m.generation(filepath.Join(o.Model, "generation_config.json"))
}

// generation reads the model's own defaults for sampling, which vLLM uses too.
func (m *loadedModel) generation(path string) error {
	m.defaults = sampling{temperature: 1, topP: 1, repetition: 1}
	var g struct {
		EOS         json.RawMessage `json:"eos_token_id"`
		Temperature *float64        `json:"temperature"`
		TopP        *float64        `json:"top_p"`
		TopK        *int            `json:"top_k"`
		Repetition  *float64        `json:"repetition_penalty"`
	}
	err := pythonjson.ReadFile(path, 1<<20, &g)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	ids, err := llama.TokenIDs(g.EOS)
	if err != nil {
		return fmt.Errorf("%s: eos_token_id: %w", path, err)
	}
	m.eos = append(m.eos, ids...)
	d := &m.defaults
	setIfGiven(&d.temperature, g.Temperature)
	setIfGiven(&d.topP, g.TopP)
	setIfGiven(&d.topK, g.TopK)
	setIfGiven(&d.repetition, g.Repetition)
	return nil
}

func setIfGiven[T any](dst *T, src *T) {
	if src != nil {
		*dst = *src
	}
}
