package nodestore

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for text, want := range map[string]string{"abc\n": "abc", " abc ": "abc", "": "", "a b": "", "a\x00b": "", strings.Repeat("x", 600): ""} {
		os.WriteFile(path, []byte(text), 0o600)
		got, err := ReadToken(path)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q %v", text, got, err)
		}
		if err != nil && text != "" && bytes.Contains([]byte(err.Error()), []byte(text)) {
			t.Errorf("the token is in the error: %v", err)
		}
	}
	if _, err := ReadToken(path + "x"); err == nil {
		t.Error("no file, no error")
	}
}
