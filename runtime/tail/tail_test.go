package tail

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// log is a log file that tests append to and rotate.
type log struct {
	t    *testing.T
	path string
}

func newLog(t *testing.T) log { return log{t, filepath.Join(t.TempDir(), "log")} }

func (l log) name() string { return l.path }

func (l log) write(s string) {
	l.t.Helper()
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		l.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(s); err != nil {
		l.t.Fatal(err)
	}
}

func (l log) rotate() {
	l.t.Helper()
	if err := os.Rename(l.path, l.path+".1"); err != nil {
		l.t.Fatal(err)
	}
}

// expect reads want and nothing more from f.
func expect(t *testing.T, f *Follower, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if n, err := io.ReadFull(f, b); err != nil || string(b) != want {
		t.Fatalf("read %q, %v, want %q", b[:n], err, want)
	}
}

func TestFollowAcrossRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(t)
		ended := make(chan struct{})
		f := New(Options{Path: l.name, Ended: ended})
		defer f.Close()
		time.AfterFunc(time.Second, func() { l.write("one\n") }) // the file does not exist yet
		expect(t, f, "one\n")
		l.write("two\n")
		expect(t, f, "two\n")
		// Written after the last read of the old file and before its rotation.
		l.write("three\n")
		l.rotate()
		l.write("four\n")
		expect(t, f, "three\nfour\n")
		l.rotate() // there is no new file for a while
		time.AfterFunc(time.Second, func() { l.write("five\n") })
		expect(t, f, "five\n")
		l.write("six\n")
		l.rotate()
		l.write("seven\n")
		close(ended)
		expect(t, f, "six\nseven\n")
		if n, err := f.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("after the end: %d, %v", n, err)
		}
	})
}

func TestLastLinesAfterEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(t)
		l.write("a")
		ended := make(chan struct{})
		f := New(Options{Path: l.name, Ended: ended})
		defer f.Close()
		expect(t, f, "a")
		read := make(chan string)
		go func() {
			b, _ := io.ReadAll(f)
			read <- string(b)
		}()
		synctest.Wait() // in its pause
		l.write("b")
		began := time.Now()
		close(ended)
		if got := <-read; got != "b" {
			t.Errorf("read %q", got)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the end was seen after %v", took)
		}
	})
}

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		f := New(Options{Path: func() string { return "" }, Stop: stop})
		time.AfterFunc(time.Second, func() { close(stop) })
		if b, err := io.ReadAll(f); err != nil || len(b) > 0 {
			t.Errorf("%q, %v", b, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestOpenFile(t *testing.T) {
	l := newLog(t)
	l.write("onetwo")
	file, err := os.Open(l.path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Seek(3, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	close(ended)
	f := New(Options{Path: l.name, File: file, Ended: ended})
	if b, err := io.ReadAll(f); string(b) != "two" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if f.Close() != nil || file.Close() == nil {
		t.Error("the file is not the follower's")
	}
}

func TestLines(t *testing.T) {
	var got []string
	text := "one\r\n\n12345\r123456789\nlast"
	if err := Lines(iotest.OneByteReader(strings.NewReader(text)), 8, func(s string) bool {
		got = append(got, s)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"one", "12345", "12345678"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	n := 0
	if Lines(strings.NewReader(text), 8, func(string) bool { n++; return false }); n != 1 {
		t.Errorf("%d calls after false", n)
	}
	if err := Lines(iotest.ErrReader(io.ErrUnexpectedEOF), 8, nil); err != io.ErrUnexpectedEOF {
		t.Error(err)
	}
}

// Close closes the file that has the path too, when the old one was not read to its end.
func TestCloseDuringRotation(t *testing.T) {
	l := newLog(t)
	l.write("one")
	f := New(Options{Path: l.name})
	expect(t, f, "one")
	l.rotate()
	l.write("two")
	if !f.openNext() || f.next == nil {
		t.Fatal("the new file is not seen")
	}
	next := f.next
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if next.Close() == nil {
		t.Error("the new file stays open")
	}
}
