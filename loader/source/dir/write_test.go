package dir_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
)

func TestWrite(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "a", "b")
	put := func(ctx context.Context, name, body string, size int) error {
		return dir.Source{}.Write(ctx, "file://"+folder, name, bytes.NewReader([]byte(body)), int64(size))
	}
	for _, body := range []string{"one", "two"} {
		if err := put(t.Context(), "x.tar", body, 3); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(folder, "x.tar")); err != nil || string(b) != body {
			t.Error(string(b), err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := put(gone, "x.tar", "six", 3); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := put(t.Context(), "x.tar", "short", 9); source.KindOf(err) != source.Broken {
		t.Error(err)
	}
	if err := put(t.Context(), "../x", "one", 3); err == nil {
		t.Error("left the folder")
	}
	if list, err := os.ReadDir(folder); err != nil || len(list) != 1 {
		t.Error("left over:", list, err)
	}
}
