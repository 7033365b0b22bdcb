package bpe

import (
	"bytes"
	"encoding/json"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// maxVocab bounds token ids, and so the memory for a crafted file.
const maxVocab = 1 << 21

// maxFile bounds tokenizer.json. The largest known ones have some 30 MB.
const maxFile = 256 << 20

func Load(path string) (*Tokenizer, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Size() > maxFile {
		return nil, fmt.Errorf("%s: %d bytes are too many for a tokenizer", path, st.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	t, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

type added struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	Special    bool   `json:"special"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
}

// step is a pre-tokenizer, normalizer or post-processor, alone or in a sequence.
type step struct {
	Type            string          `json:"type"`
	Pretokenizers   []step          `json:"pretokenizers"`
	Normalizers     []step          `json:"normalizers"`
	Processors      []step          `json:"processors"`
	Pattern         json.RawMessage `json:"pattern"`
	Behavior        string          `json:"behavior"`
	Invert          bool            `json:"invert"`
	IndividualDigit bool            `json:"individual_digits"`
	AddPrefixSpace  bool            `json:"add_prefix_space"`
	UseRegex        *bool           `json:"use_regex"`
	Single          []map[string]struct {
		ID string `json:"id"`
	} `json:"single"`
	SpecialTokens map[string]struct {
		IDs []int32 `json:"ids"`
	} `json:"special_tokens"`
}

// flatten expands sequences.
func (s step) flatten() []step {
	var out []step
	for _, l := range [][]step{s.Pretokenizers, s.Normalizers, s.Processors} {
		for _, x := range l {
			out = append(out, x.flatten()...)
		}
	}
	if s.Type != "" && s.Type != "Sequence" {
		out = append(out, s)
	}
	return out
}

func Parse(b []byte) (*Tokenizer, error) {
	t := &Tokenizer{}
	t.names.arena = make([]byte, 0, len(b)/4) // the vocabulary is about half of it, and as much syntax as text
	d := newDecoder(b)
	var addedRaw, pre, norm, post jsontext.Value
	raw := map[string]*jsontext.Value{"added_tokens": &addedRaw, "pre_tokenizer": &pre, "normalizer": &norm, "post_processor": &post}
	model := false
	err := readObject(d, func(key string) (err error) {
		switch to := raw[key]; {
		case to != nil:
			*to, err = d.ReadValue()
			*to = bytes.Clone(*to)
		case key == "model" && model:
			err = errors.New("model stands there twice")
		case key == "model":
			model = true
			if err = t.model(d); err != nil {
				err = fmt.Errorf("model: %w", err)
			}
		default:
			err = d.SkipValue()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, fmt.Errorf("want the end at byte %d", d.InputOffset())
	}
	if !model {
		return nil, errors.New("model is missing")
	}
	if err := t.cutting(pre, norm); err != nil {
		return nil, err
	}
	if err := t.addTokens(addedRaw); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	for _, x := range t.names.span {
		t.Longest = max(t.Longest, int(x.n))
	}
	if err := t.readTemplate(post); err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	return t, nil
}

func decodeStep(raw []byte) ([]step, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var s step
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, err
	}
	return s.flatten(), nil
}

// cutting finds the known pattern of the file.
func (t *Tokenizer) cutting(pre, norm []byte) error {
	ns, err := decodeStep(norm)
	if err != nil {
		return fmt.Errorf("normalizer: %w", err)
	}
	for _, n := range ns {
		if n.Type != "NFC" {
			return fmt.Errorf("normalizer %s is not supported (known: NFC)", n.Type)
		}
		t.nfc = true
	}
	ps, err := decodeStep(pre)
	if err != nil {
		return fmt.Errorf("pre_tokenizer: %w", err)
	}
	if len(ps) == 0 {
		return errors.New("pre_tokenizer is missing: not a byte-level tokenizer")
	}
	last := ps[len(ps)-1]
	if last.Type != "ByteLevel" {
		return fmt.Errorf("pre_tokenizer %s is not supported (known: ByteLevel)", last.Type)
	}
	t.prefix = last.AddPrefixSpace
	regex := last.UseRegex == nil || *last.UseRegex
	switch {
	case len(ps) == 1 && regex:
		t.Pattern = GPT2
		return nil
	case len(ps) == 2 && ps[0].Type == "Digits" && ps[0].IndividualDigit && regex:
		t.Pattern = Digits
		return nil
	case len(ps) == 2 && ps[0].Type == "Split" && !regex:
		var p struct{ Regex string }
		if err := json.Unmarshal(ps[0].Pattern, &p); err != nil {
			return fmt.Errorf("pre_tokenizer: pattern: %w", err)
		}
		if b := ps[0].Behavior; b != "Isolated" && !(b == "Removed" && ps[0].Invert) {
			return fmt.Errorf("pre_tokenizer: split behavior %q is not supported", b)
		}
		switch p.Regex {
		case gpt2Regex:
			t.Pattern = GPT2
		case llama3Regex:
			t.Pattern = Llama3
		case qwen2Regex:
			t.Pattern = Qwen2
		default:
			return fmt.Errorf("pre_tokenizer: unknown split pattern %q", p.Regex)
		}
		return nil
	}
	var types []string
	for _, p := range ps {
		types = append(types, p.Type)
	}
	return fmt.Errorf("pre_tokenizer: unknown combination %s", strings.Join(types, ", "))
}

// model reads the two large tables; merges before the vocabulary, which no known file
// has, are read after it.
func (t *Tokenizer) model(d *jsontext.Decoder) error {
	var later *jsontext.Decoder
	vocab, merged := false, false
	err := readObject(d, func(key string) error {
		switch key {
		case "vocab":
			if vocab {
				return errors.New("vocab stands there twice")
			}
			vocab = true
			if err := t.readVocab(d); err != nil {
				return fmt.Errorf("vocab: %w", err)
			}
			return nil
		case "merges":
			if merged {
				return errors.New("merges stands there twice")
			}
			merged = true
			if !vocab {
				raw, err := d.ReadValue()
				later = newDecoder(bytes.Clone(raw))
				return err
			}
			return t.readMerges(d)
		}
		v, err := d.ReadValue()
		if err != nil {
			return err
		}
		switch key {
		case "type": // it stands before the vocabulary, which has another form in others
			var typ string
			if err := json.Unmarshal(v, &typ); err != nil || typ == "BPE" {
				return err
			}
			return fmt.Errorf("type %q is not supported (known: BPE)", typ)
		case "ignore_merges":
			return json.Unmarshal(v, &t.ignoreMerges)
		case "byte_fallback":
			var on bool
			if err := json.Unmarshal(v, &on); err != nil {
				return err
			}
			if on {
				return errors.New("byte_fallback (SentencePiece) is not supported")
			}
		case "continuing_subword_prefix", "end_of_word_suffix":
			if x := string(v); x != "null" && x != `""` {
				return fmt.Errorf("%s is not supported", key)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !vocab || !merged {
		return errors.New("vocab or merges is missing")
	}
	if later != nil {
		return t.readMerges(later)
	}
	return nil
}

func (t *Tokenizer) readVocab(d *jsontext.Decoder) error {
	n := &t.names
	err := readList(d, jsontext.KindBeginObject, func() error {
		start := len(n.arena)
		b, err := readText(d, n.arena)
		if err != nil {
			return err
		}
		n.arena = b[:start+len(decodeByteLevel(b[start:]))]
		id, err := readID(d)
		if err != nil {
			return err
		}
		n.grow(id)
		if n.span[id].n != 0 {
			return fmt.Errorf("id %d has two names", id)
		}
		if len(n.arena) == start {
			return fmt.Errorf("id %d has an empty name", id)
		}
		n.span[id] = span{uint32(start), uint32(len(n.arena) - start)}
		n.count++
		t.Size = max(t.Size, int(id)+1)
		return nil
	})
	if err != nil {
		return err
	}
	if id := n.index(); id >= 0 {
		return fmt.Errorf("%q stands there twice", n.bytes(id))
	}
	for b := range 256 {
		t.byteID[b] = n.find([]byte{byte(b)})
	}
	return nil
}

func (t *Tokenizer) readMerges(d *jsontext.Decoder) error {
	t.merges = newMerges(min(t.names.count, maxVocab))
	rank, last := int32(0), int32(-1)
	var l, r, buf []byte
	err := readList(d, jsontext.KindBeginArray, func() error {
		var err error
		if d.PeekKind() == jsontext.KindBeginArray { // ["a", "b"], newer files
			k := 0
			err = readList(d, jsontext.KindBeginArray, func() (err error) {
				switch k {
				case 0:
					l, err = readText(d, l[:0])
				case 1:
					r, err = readText(d, r[:0])
				default:
					err = errors.New("a merge of more than two")
				}
				k++
				return err
			})
			if err == nil && k != 2 {
				err = errors.New("a merge of less than two")
			}
		} else { // "a b"
			if buf, err = readText(d, buf[:0]); err == nil {
				i := slices.Index(buf, ' ')
				if i < 0 {
					return fmt.Errorf("%q is not a pair", buf)
				}
				l, r = append(l[:0], buf[:i]...), append(r[:0], buf[i+1:]...)
			}
		}
		if err != nil {
			return err
		}
		a, b := decodeByteLevel(l), decodeByteLevel(r)
		left, right := t.names.find(a), t.names.find(b)
		buf = append(append(buf[:0], a...), b...)
		// Most vocabularies have the merged tokens in the order of the merges.
		id := last + 1
		if string(t.names.bytes(id)) != string(buf) {
			id = t.names.find(buf)
		}
		last = id
		if left < 0 || right < 0 || id < 0 {
			return fmt.Errorf("%q and %q: a part or the whole is not in the vocabulary", a, b)
		}
		if int(rank) >= len(t.merges.slots)*3/4 {
			t.merges = t.merges.double()
		}
		t.merges.add(left, right, rank, id)
		rank++
		return nil
	})
	if err != nil {
		return fmt.Errorf("merges: %w", err)
	}
	return nil
}

func (m *merges) double() *merges {
	n := newMerges(len(m.slots))
	for _, e := range m.slots {
		if e.pair != 0 {
			n.add(int32(e.pair>>32)-1, int32(uint32(e.pair)), e.rank, e.id)
		}
	}
	return n
}

func (t *Tokenizer) addTokens(raw []byte) error {
	t.flags = make([]uint8, t.Size)
	if len(raw) == 0 {
		return nil
	}
	var list []added
	if err := json.Unmarshal(raw, &list); err != nil {
		return err
	}
	for _, a := range list {
		if a.ID < 0 || a.ID > maxVocab {
			return fmt.Errorf("id %d of %q", a.ID, a.Content)
		}
		if a.Content == "" {
			return fmt.Errorf("id %d is empty", a.ID)
		}
		t.Size = max(t.Size, int(a.ID)+1)
		for len(t.flags) < t.Size {
			t.flags = append(t.flags, 0)
		}
		n := &t.names
		n.grow(a.ID)
		if string(n.bytes(a.ID)) != a.Content {
			n.span[a.ID] = span{uint32(len(n.arena)), uint32(len(a.Content))}
			n.arena = append(n.arena, a.Content...)
		}
		t.flags[a.ID] |= isAdded
		if a.Special {
			t.flags[a.ID] |= isSpecial
		}
	}
	t.added, t.byText = list, make(map[string]int, len(list))
	for i, a := range list {
		if _, ok := t.byText[a.Content]; ok {
			continue // the first one counts
		}
		t.byText[a.Content] = i
		c := a.Content[0]
		if !slices.Contains(t.lengths[c], len(a.Content)) {
			t.lengths[c] = append(t.lengths[c], len(a.Content))
		}
	}
	for c := range t.lengths {
		slices.SortFunc(t.lengths[c], func(a, b int) int { return b - a })
	}
	return nil
}

// readTemplate reads the special tokens before and after a text.
func (t *Tokenizer) readTemplate(raw []byte) error {
	ps, err := decodeStep(raw)
	if err != nil {
		return err
	}
	for _, p := range ps {
		switch p.Type {
		case "ByteLevel":
		case "TemplateProcessing":
			seen := false
			for _, e := range p.Single {
				if _, ok := e["Sequence"]; ok {
					seen = true
					continue
				}
				sp, ok := e["SpecialToken"]
				if !ok {
					return errors.New("TemplateProcessing with an unknown element")
				}
				ids := p.SpecialTokens[sp.ID].IDs
				if len(ids) == 0 {
					return fmt.Errorf("special token %q has no id", sp.ID)
				}
				for _, id := range ids {
					if id < 0 || int(id) >= t.Size {
						return fmt.Errorf("special token %q has id %d outside the vocabulary", sp.ID, id)
					}
				}
				if seen {
					t.after = append(t.after, ids...)
				} else {
					t.before = append(t.before, ids...)
				}
			}
		default:
			return fmt.Errorf("%s is not supported (known: ByteLevel, TemplateProcessing)", p.Type)
		}
	}
	return nil
}
