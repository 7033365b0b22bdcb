package sourcetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
)

// Writer is a source that may be written to (enginecache.Writer).
type Writer interface {
	Source
	Write(ctx context.Context, location, name string, body io.ReadSeeker, size int64) error
}

// RunWrites runs the suite of sources that may be written to: location is empty,
// denied is the same source without the right to write.
func RunWrites(t *testing.T, s Writer, location string, denied Writer) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	for _, body := range [][]byte{[]byte("first"), []byte("second"), large, {}} {
		r := bytes.NewReader(append([]byte("skipped"), body...))
		if _, err := r.Seek(7, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if err := s.Write(t.Context(), location, "x, 100%.tar", r, int64(len(body))); err != nil {
			t.Fatal(err)
		}
		plan, err := s.Plan(t.Context(), location, nil)
		if err != nil || len(plan.Files) != 1 || plan.Files[0].Name != "x, 100%.tar" || plan.Files[0].Size != int64(len(body)) {
			t.Fatalf("%+v, %v", plan, err)
		}
		if len(body) == 0 {
			continue
		}
		in, err := s.Read(t.Context(), plan.Files[0], 0, int64(len(body)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(in)
		in.Close()
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d of %d bytes, %v", len(got), len(body), err)
		}
	}
	if err := s.Write(t.Context(), location, "short", bytes.NewReader([]byte("abc")), 9); source.KindOf(err) != source.Broken {
		t.Errorf("a body that is too short: %v", err)
	}
	if plan, err := s.Plan(t.Context(), location, nil); err != nil || len(plan.Files) != 1 {
		t.Error("half an object:", plan, err)
	}
	if err := denied.Write(t.Context(), location, "x", bytes.NewReader([]byte("abc")), 3); source.KindOf(err) != source.Denied {
		t.Errorf("without the right: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	if err := s.Write(ctx, location, "x", bytes.NewReader([]byte("abc")), 3); !errors.Is(err, gone) {
		t.Errorf("a caller that left: %v", err)
	}
}
