package kit

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	const good = "0123456789abcdef"
	for text, want := range map[string]string{
		good + "\n": good, " " + good + " ": good, strings.Repeat("x", 512): strings.Repeat("x", 512),
		"": "", "\n": "", good[:15]: "", "01234567 89abcdef": "", "a\x00" + good: "", "\u00e9" + good: "", strings.Repeat("x", 513): "",
	} {
		os.WriteFile(path, []byte(text), 0o600)
		got, err := ReadToken(path)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q %v", text, got, err)
		}
		if err == nil {
			continue
		}
		if !strings.HasPrefix(err.Error(), path+" holds no token: it takes one word of 16 to 512 ") {
			t.Errorf("%q: the error does not name the file and the way out: %v", text, err)
		}
		if strings.TrimSpace(text) != "" && strings.Contains(err.Error(), text) {
			t.Errorf("the token is in the error: %v", err)
		}
	}
	if _, err := ReadToken(path + "x"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path+"x") {
		t.Errorf("no file: %v", err)
	}
	if _, err := ReadToken(filepath.Dir(path)); err == nil { // unreadable, also for root
		t.Error("a folder is no token")
	}
	os.Chmod(path, 0)
	if _, err := ReadToken(path); os.Getuid() != 0 && !errors.Is(err, fs.ErrPermission) {
		t.Errorf("unreadable: %v", err)
	}
}
