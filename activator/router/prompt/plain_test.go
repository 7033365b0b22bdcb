package prompt

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// readPlainly is [scan.read] word by word and byte by byte.
func readPlainly(s *scan, text []byte) {
	begin := true
	for i := 0; i < len(text); {
		switch classes[text[i]] {
		case charLetter, charHigh:
			i, begin = s.word(text, i, begin), false
			continue
		case charDigit:
			s.counts.digits++
			begin = false
		case charSpace:
			i = s.counts.space(text, i)
			continue
		case charLine:
			s.counts.lines++
			s.endSentence()
			begin = true
		default:
			s.counts.marks++
			if classes[text[i]] != charQuiet {
				s.mark(text, i, begin)
			}
			begin = false
		}
		i++
	}
	s.end()
}

// TestReadPlainly: the fast reading of a text sees what the plain one does.
func TestReadPlainly(t *testing.T) {
	same := func(text []byte) {
		t.Helper()
		var a, b scan
		a.read(text)
		readPlainly(&b, text)
		if a.counts.tokens() != b.counts.tokens() || a.words != b.words || a.stops != b.stops || a.script != b.script || a.found != b.found ||
			a.code.found(a.words) != b.code.found(b.words) || a.language() != b.language() {
			t.Fatalf("%q\n%+v\n%+v", text, a, b)
		}
	}
	var all [][]byte
	for _, pattern := range []string{"*.go", "../../../deploy/docs/*.md", "../intents/background.txt"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, text)
			for line := range bytes.Lines(text) {
				same(line)
			}
			same(append([]byte("diff --git a b\n"), text...))
			same(text)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"json", "JSON", " ", "  ", ", ", ". ", ".  ", ".", "? ", "!", "\n", "\r\n", "\t", "(", ")", "C#", "c++", "is", "This", "comment", "toxic", "return", "as", "def f(x):\n", "if x {\n", "fooBar", "foo_bar", "TypeError",
		"日本", "é", "über", "main.go:12", "`", "```go\n", "```", "a1", "1", "/usr/bin", "diff --git ", "averyverylongwordwithoutend", "abcdefgh", "abcdefghi", "abcdefghijklmno", "abcdefghijklmnop", "safe", "unsafe", "classify",
		"\\", "\"", "返回", "Ж", "ñ", "_x", "__init__", "select", "SELECT ", "x=>y", "&&", "::", "\x00", "\x7f", "K", "name", "extract", "entities", "passage", "list", "all", "write", "function", "in", "Java", "linked", "$", "\\frac", " = [", "[", "]", "@", "{", "|", "~"}
	for range 20000 {
		var text []byte
		for range random.IntN(60) {
			text = append(text, pieces[random.IntN(len(pieces))]...)
			if random.IntN(3) == 0 {
				text = append(text, ' ')
			}
		}
		same(text)
		same(append([]byte("```go\n"), text...)) // code for certain from its beginning on
		from := all[random.IntN(len(all))]
		at := random.IntN(len(from))
		text = bytes.Clone(from[at:min(len(from), at+random.IntN(400))])
		for range random.IntN(20) {
			if len(text) > 0 {
				text[random.IntN(len(text))] = byte(random.IntN(256))
			}
		}
		same(text)
	}
}

// TestStops: all stop words of a long text are counted.
func TestStops(t *testing.T) {
	for k, list := range stopWords {
		for _, words := range []string{list, strings.Fields(list)[0], "der die das und"} {
			want := 0
			for w := range strings.FieldsSeq(words) {
				if slices.Contains(strings.Fields(list), w) {
					want += 150
				}
			}
			var s scan
			if s.read([]byte(strings.Repeat(words+"\n", 150))); s.stops[k] != want {
				t.Errorf("%s: %d of %d in %s", languageCodes[k], s.stops[k], want, words)
			}
		}
	}
}

// TestSystemAgain: a text of the system that is that of the request before is read as another one.
func TestSystemAgain(t *testing.T) {
	body := func(texts ...string) []byte {
		b := []byte(`{"model":"m","messages":[`)
		for _, text := range texts {
			b = fmt.Appendf(b, `{"role":"system","content":%q},`, text)
		}
		return append(b, `{"role":"user","content":"Hello there."}]}`...)
	}
	moderator := "Classify each message: is it safe or unsafe? " + strings.Repeat("Answer with one word. ", 30)
	for _, b := range [][]byte{body(moderator), body("Be kind."), body("Be kind.", moderator), body("", moderator), body("Is it safe", "or unsafe? Classify the message.")} {
		read := func(b []byte) functions.RouteFeatures {
			env, err := openai.Peek(b)
			if err != nil {
				t.Fatal(err)
			}
			return Read(&env, b)
		}
		read(body("Another one."))
		want := read(b)
		if strings.Contains(string(b), "Classify each") && !want.Safety {
			t.Errorf("%s: %+v", b, want)
		}
		for range 3 {
			if got := read(b); got != want {
				t.Errorf("%s: %+v, want %+v", b, got, want)
			}
		}
	}
}

// TestFamilyOfTurns: the family is of the texts in their order, of every role and however
// they are split.
func TestFamilyOfTurns(t *testing.T) {
	long := ""
	for i := range familyBytes / 4 {
		long += fmt.Sprintf("%04d", i)
	}
	family := func(format string, parts ...any) string {
		b := fmt.Appendf(nil, `{"model":"m","messages":[`+format+`]}`, parts...)
		env, err := openai.Peek(b)
		if err != nil {
			t.Fatal(err)
		}
		return Read(&env, b).PromptFamily
	}
	const user, other, two = `{"role":"user","content":%q}`, `{"role":"assistant","content":%q}`, `{"role":"user","content":[{"text":%q},{"text":%q}]}`
	want := family(user, long+"\n\"end\"")
	for _, got := range []string{
		family(user+","+user, long[:100], long[100:]+"\n\"end\""),
		family(user+","+other+","+user, long[:100], long[100:200], long[200:]+"\n\""),
		family(other+","+user+","+other+","+user, long[:9], long[9:99], long[99:200], long[200:]+"\n\""),
		family(two+","+other, long[:100], long[100:200], long[200:]+"\n\""),
		family(other+","+two, long[:100], long[100:200], long[200:]+"\n\""),
	} {
		if got != want || len(got) != 16 {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := family(other+","+user, long[100:], long[:100]+"\n\""); got == want {
		t.Error("the order makes no difference")
	}
}

// TestVocabularyHasSlots: each word of the vocabulary is found by its hash, and no other is.
func TestVocabularyHasSlots(t *testing.T) {
	n := 0
	for i := range table.slots {
		e := &table.slots[i]
		if e.hash == 0 {
			continue
		}
		n++
		if table.find(e.hash) != e || e.matches(e.hash) != ^uint64(0) || e.matches(e.hash^1) != 0 {
			t.Errorf("slot %d", i)
		}
	}
	if n < 500 {
		t.Errorf("%d words", n)
	}
}
