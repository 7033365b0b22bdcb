package headercheck_test

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/headercheck"
	"github.com/thaw-dev/thaw/loader/source"
)

// TestTokenizerFiles: a JSON file beside config.json that was cut short, or that is another
// thing, is refused before an engine reads it; what is in it, the engine checks.
func TestTokenizerFiles(t *testing.T) {
	long := `{"a": "` + strings.Repeat("x", 1000) + `"}`
	for name, c := range map[string]struct {
		text string
		kind source.Kind
		want string
	}{
		"good":        {long, "", ""},
		"blanks":      {" \n" + long + "\r\n", "", ""},
		"empty":       {"", source.Truncated, "is empty (copy the file again)"},
		"cut short":   {long[:500], source.Truncated, "it was cut short (copy the file again)"},
		"a page":      {"<!DOCTYPE html>" + long, source.Corrupt, "is a page"},
		"text":        {"404: Not Found", source.Corrupt, `text that begins with "404: Not Found"`},
		"a BOM":       {"\ufeff" + long, source.Corrupt, "byte order mark"},
		"UTF-16":      {"\xff\xfe{\x00}\x00", source.Corrupt, "save it as UTF-8"},
		"zeros":       {strings.Repeat("\x00", 500), source.Corrupt, "was not finished"},
		"compressed":  {"\x1f\x8b\x08\x00aaaaaaa", source.Corrupt, "decompress it"},
		"a LFS file":  {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", source.Missing, "git lfs pull"},
		"other bytes": {"\x01\x02\x03{}", source.Corrupt, "does not begin with {"},
	} {
		for _, file := range []string{"tokenizer.json", "sub/tokenizer_config.json"} {
			err := headercheck.File(file, strings.NewReader(c.text), int64(len(c.text)))
			if source.KindOf(err) != c.kind || c.want != "" && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if err := headercheck.File("results.json", strings.NewReader("no JSON"), 7); err != nil {
		t.Errorf("a file that no engine reads: %v", err)
	}
}
