package bpe

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func split(p Pattern, s string) (out []string) {
	p.Split(s, func(w string) { out = append(out, w) })
	return out
}

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		in                          string
		gpt2, digits, llama3, qwen2 string // words with | between
	}{
		{"Hello world", "Hello| world", "", "", ""},
		{"a  b", "a| | b", "", "", ""},
		{"a   ", "a|   ", "", "", ""},
		{" \n x", " \n| x", "", " \n| x", " \n| x"},
		{"a\n\n b", "a|\n\n| b", "", "", ""},
		{"a \n b", "a| \n| b", "", "", ""},
		{"12345", "12345", "1|2|3|4|5", "123|45", "1|2|3|4|5"},
		{"x 12", "x| 12", "x| |1|2", "x| |12", "x| |1|2"},
		{"don't", "don|'t", "", "", ""},
		{"DON'T", "DON|'|T", "DON|'|T", "DON|'T", "DON|'T"},
		{"(foo)", "(|foo|)", "(|foo|)", "(foo|)", "(foo|)"},
		{"a!!\n\nb", "a|!!|\n|\n|b", "a|!!|\n|\n|b", "a|!!\n\n|b", "a|!!\n\n|b"},
		{"x\u00a0y", "x|\u00a0|y", "x|\u00a0|y", "x|\u00a0y", "x|\u00a0y"},
		{"x\ty", "x|\t|y", "x|\t|y", "x|\ty", "x|\ty"},
		{"\r\nfoo", "\r|\n|foo", "\r|\n|foo", "\r\n|foo", "\r\n|foo"},
		{"漢字 かな", "漢字| かな", "", "", ""},
		{"½²", "½²", "½|²", "½²", "½|²"},
		{"e\u0301x", "e|\u0301|x", "e|\u0301|x", "e|\u0301x", "e|\u0301x"},
		{"", "", "", "", ""},
	} {
		for i, want := range []string{c.gpt2, c.digits, c.llama3, c.qwen2} {
			if want == "" {
				want = c.gpt2
			}
			p := Pattern(i)
			if got := strings.Join(split(p, c.in), "|"); got != want {
				t.Errorf("%v %q: %q, want %q", p, c.in, got, want)
			}
		}
	}
}

// The words joined must be the text, whatever it is, and none may be empty.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{"Hello, world's 123 \r\n\t x  ", "漢字½ '\u00a0 'S'", "\xff\xfe a", "🙂👍🏽 e\u0301"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for p := GPT2; p <= Qwen2; p++ {
			ws := split(p, s)
			if strings.Join(ws, "") != s || slices.Contains(ws, "") {
				t.Fatalf("%v %q: %q", p, s, ws)
			}
		}
	})
}

// source is a tokenizer.json in parts that a test can change.
type source struct {
	vocab  map[string]int
	merges any
	fields string // further members
	model  string // further members of model
}

func (s source) json() []byte {
	v, _ := json.Marshal(s.vocab)
	m, _ := json.Marshal(s.merges)
	if s.fields == "" {
		s.fields = `"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false}`
	}
	return fmt.Appendf(nil, `{"version":"1.0",%s,"model":{"type":"BPE","vocab":%s,"merges":%s%s}}`, s.fields, v, m, s.model)
}

// byteLetters is a vocabulary of all bytes and then names.
func byteLetters(names ...string) map[string]int {
	v := map[string]int{}
	for b := range 256 {
		v[string(byteRunes[b])] = b
	}
	for i, n := range names {
		v[n] = 256 + i
	}
	return v
}

var (
	abNames  = []string{"ab", "abc", "Ġa", "Ġab", "bc", "Ġabc"}
	abMerges = []string{"b c", "a b", "Ġ a", "a bc", "Ġ ab", "Ġ abc"}
)

func TestEncode(t *testing.T) {
	pairs := [][2]string{}
	for _, m := range abMerges {
		a, b, _ := strings.Cut(m, " ")
		pairs = append(pairs, [2]string{a, b})
	}
	added := `"added_tokens":[{"id":262,"content":"<s>","special":true},{"id":263,"content":"<sep>","lstrip":true,"rstrip":true},{"id":264,"content":"<s>x"},{"id":265,"content":"wd","single_word":true}],`
	level := `"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false}`
	post := `"post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"<s>":{"id":"<s>","ids":[262],"tokens":["<s>"]}}}]},`
	for _, c := range []struct {
		name string
		s    source
		in   string
		want []int
	}{
		{"lowest rank first", source{merges: abMerges}, "abc", []int{257}},
		{"merges as pairs", source{merges: pairs}, "abc", []int{257}},
		{"with the space", source{merges: abMerges}, "abc abc", []int{257, 258, 260}},
		{"leftmost", source{merges: []string{"a a"}}, "aaa", []int{256, 'a'}},
		{"added, longest first", source{merges: abMerges, fields: added + level}, "a<s>x<s>b", []int{'a', 264, 262, 'b'}},
		{"stripping", source{merges: abMerges, fields: added + level}, "a  <sep> \n b", []int{'a', 263, 'b'}},
		{"single word", source{merges: abMerges, fields: added + level}, "wd wda .wd.", []int{265, ' ', 'w', 'd', 'a', ' ', '.', 265, '.'}},
		{"prefix space", source{merges: abMerges, fields: `"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true}`}, "ab", []int{259}},
		{"before the text", source{merges: abMerges, fields: added + post + level}, "ab", []int{262, 256}},
		{"whole word", source{merges: []string{"a b"}, model: `,"ignore_merges":true`}, "bc", []int{260}},
		{"no whole word", source{merges: []string{"a b"}}, "bc", []int{'b', 'c'}},
		{"NFC", source{merges: abMerges, fields: `"normalizer":{"type":"NFC"},` + level}, "e\u0301", []int{0xc3, 0xa9}},
		{"empty", source{merges: abMerges}, "", []int{}},
	} {
		c.s.vocab = byteLetters(abNames...)
		if c.name == "leftmost" {
			c.s.vocab = byteLetters("aa")
		}
		tok, err := Parse(c.s.json())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got := tok.Encode(c.in, true)
		// Single bytes stand for themselves but for the order of the vocabulary.
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		for range 2 { // again, out of the cache
			if again := tok.Encode(c.in, true); !slices.Equal(again, got) {
				t.Errorf("%s: then %v", c.name, again)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	good := source{vocab: byteLetters(abNames...), merges: abMerges}
	with := func(change func(*source)) []byte {
		s := good
		change(&s)
		return s.json()
	}
	pre := func(j string) []byte { return with(func(s *source) { s.fields = `"pre_tokenizer":` + j }) }
	level := `"pre_tokenizer":{"type":"ByteLevel"}`
	for _, c := range []struct {
		name string
		b    []byte
		want string
	}{
		{"empty", nil, "EOF"},
		{"cut", good.json()[:500], "unexpected EOF"},
		{"behind", append(good.json(), 'x'), "want the end"},
		{"no model", []byte(`{"pre_tokenizer":{"type":"ByteLevel"}}`), "model is missing"},
		{"no pre_tokenizer", with(func(s *source) { s.fields = `"x":1` }), "pre_tokenizer is missing"},
		{"null pre_tokenizer", pre("null"), "pre_tokenizer is missing"},
		{"Metaspace", pre(`{"type":"Metaspace"}`), "Metaspace is not supported"},
		{"unknown split", pre(`{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\w+"},"behavior":"Isolated"},{"type":"ByteLevel","use_regex":false}]}`), "unknown split pattern"},
		{"unknown behavior", pre(`{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"x"},"behavior":"MergedWithNext"},{"type":"ByteLevel","use_regex":false}]}`), "behavior"},
		{"unknown sequence", pre(`{"type":"Sequence","pretokenizers":[{"type":"Whitespace"},{"type":"ByteLevel"}]}`), "unknown combination Whitespace, ByteLevel"},
		{"normalizer", with(func(s *source) { s.fields = level + `,"normalizer":{"type":"Lowercase"}` }), "normalizer Lowercase"},
		{"post_processor", with(func(s *source) { s.fields = level + `,"post_processor":{"type":"BertProcessing"}` }), "BertProcessing is not supported"},
		{"byte_fallback", with(func(s *source) { s.model = `,"byte_fallback":true` }), "byte_fallback"},
		{"suffix", with(func(s *source) { s.model = `,"end_of_word_suffix":"</w>"` }), "end_of_word_suffix"},
		{"merge unknown", with(func(s *source) { s.merges = []string{"a z"} }), "not in the vocabulary"},
		{"merge no pair", with(func(s *source) { s.merges = []string{"ab"} }), "not a pair"},
		{"merge of three", with(func(s *source) { s.merges = [][]string{{"a", "b", "c"}} }), "more than two"},
		{"merge of one", with(func(s *source) { s.merges = [][]string{{"a"}} }), "less than two"},
		{"id twice", with(func(s *source) { s.vocab = byteLetters("xy"); s.vocab["q"] = 256 }), "has two names"},
		{"id too large", with(func(s *source) { s.vocab = byteLetters(); s.vocab["xy"] = 1 << 30 }), "larger than"},
		{"added too large", with(func(s *source) { s.fields = level + `,"added_tokens":[{"id":1073741824,"content":"x"}]` }), "id 1073741824"},
		{"added negative", with(func(s *source) { s.fields = level + `,"added_tokens":[{"id":-1,"content":"x"}]` }), "id -1"},
		{"added empty", with(func(s *source) { s.fields = level + `,"added_tokens":[{"id":1,"content":""}]` }), "is empty"},
		{"deep", []byte(strings.Repeat(`{"a":`, 20000)), "max depth"},
	} {
		if _, err := Parse(c.b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Nothing that is parsed may make Encode or Decode fail, and text of bytes that the
// vocabulary has comes back whole.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"added_tokens":[{"id":3,"content":"<s>","special":true}],"pre_tokenizer":{"type":"ByteLevel"},"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]}}`), "a<s>b")
	f.Add([]byte(`{"pre_tokenizer":{"type":"ByteLevel"},"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}`), "abba")
	f.Fuzz(func(t *testing.T, b []byte, text string) {
		tok, err := Parse(b)
		if err != nil {
			return
		}
		ids := tok.Encode(text, true)
		for _, id := range ids {
			if id < 0 || id >= tok.Size {
				t.Fatalf("id %d of %d", id, tok.Size)
			}
		}
		if s := tok.Decode(ids); !utf8.ValidString(s) {
			t.Fatalf("%q", s)
		}
	})
}

// Long words go another way through the merges; both must agree.
func TestLongMerge(t *testing.T) {
	tok, err := Parse(source{vocab: byteLetters("aa", "aaaa", "ab", "ba", "abab", "aab", "aaaaaaaa"), merges: []string{"a b", "a a", "aa aa", "ab ab", "b a", "a ab", "aaaa aaaa"}}.json())
	if err != nil {
		t.Fatal(err)
	}
	slow := func(w string) []int32 {
		var ids []int32
		for i := range len(w) {
			ids = append(ids, tok.byteID[w[i]])
		}
		for {
			at, best, to := -1, int32(0), int32(0)
			for i := range len(ids) - 1 {
				if r, id, ok := tok.merges.find(ids[i], ids[i+1]); ok && (at < 0 || r < best) {
					at, best, to = i, r, id
				}
			}
			if at < 0 {
				return ids
			}
			ids[at] = to
			ids = slices.Delete(ids, at+1, at+2)
		}
	}
	x := uint32(1)
	for n := 1; n < 400; n += 7 {
		var b []byte
		for range n {
			x = x*1664525 + 1013904223
			b = append(b, "aaab"[x>>30])
		}
		if got, want := tok.merge(string(b)), slow(string(b)); !slices.Equal(got, want) {
			t.Fatalf("%s: %v, want %v", b, got, want)
		}
	}
	// A quarter of a megabyte without a space must not take quadratic time; the test's own
	// deadline would notice.
	if n := len(tok.Encode(strings.Repeat("a", 1<<18), false)); n != 1<<15 {
		t.Errorf("%d tokens", n)
	}
}

// Every byte must have a character, each its own, and come back from it.
func TestByteRunes(t *testing.T) {
	seen := map[rune]bool{}
	for b := range 256 {
		r := byteRunes[b]
		if seen[r] {
			t.Errorf("%q twice", r)
		}
		seen[r] = true
		if got := decodeByteLevel([]byte(string(r))); len(got) != 1 || got[0] != byte(b) {
			t.Errorf("byte %d came back as %v", b, got)
		}
	}
	if byteRunes[' '] != 'Ġ' || byteRunes['\n'] != 'Ċ' {
		t.Error("not GPT-2's characters")
	}
}
