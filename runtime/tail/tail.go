// Package tail has a Follower, which reads a growing log file as one stream of bytes across its
// rotation, by polling, and Lines, which calls a function with each line of any stream, cut at a
// limit; it parses no lines. When another file takes the path, the rest of the old one is read
// first, then the new one from its beginning.
package tail

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"time"
)

// DefaultEvery is the pause between two looks at a file without news.
const DefaultEvery = 200 * time.Millisecond

type Options struct {
	// Path is the log's path, or "" while it is not known. It may be called
	// before every read. A file that does not exist yet is waited for.
	Path func() string
	// File, if not nil, is the open log; reading starts at its offset. The
	// Follower closes it.
	File *os.File
	// Every is the polling interval; 0 is DefaultEvery.
	Every time.Duration
	// Ended is closed when the writer has ended: what is in the files is read,
	// then io.EOF is returned. nil: the writer never ends.
	Ended <-chan struct{}
	// Stop is closed to end reading at once with io.EOF; nil: never.
	Stop <-chan struct{}
}

// Follower is an io.ReadCloser over a growing log. It is for one goroutine.
type Follower struct {
	o     Options
	file  *os.File // nil while there is none to read
	next  *os.File // has the path of file now; read once file is exhausted
	ended bool     // the writer had ended before the last look at the files
}

// New returns a Follower; nothing is read before Read.
func New(o Options) *Follower {
	o.Every = cmp.Or(max(o.Every, 0), DefaultEvery)
	return &Follower{o: o, file: o.File}
}

// Read blocks until there is something to read. It returns io.EOF after Stop, or
// after Ended when everything was read.
func (f *Follower) Read(p []byte) (int, error) {
	for {
		if f.file != nil {
			if n, err := f.file.Read(p); n > 0 || err != io.EOF {
				return n, err
			}
			if f.next != nil {
				f.file.Close()
				f.file, f.next = f.next, nil
				continue
			}
		}
		if f.openNext() {
			continue
		}
		if f.ended {
			return 0, io.EOF
		}
		t := time.NewTimer(f.o.Every)
		select {
		case <-t.C:
		case <-f.o.Ended:
			f.ended = true // the last lines may have been written since the last read
		case <-f.o.Stop:
			t.Stop()
			return 0, io.EOF
		}
		t.Stop()
	}
}

// openNext opens the file that has the path now, if it is not the one being read,
// and reports whether there is something new to read. The old file may have grown
// between its end and its rotation, so it is read to its end once more.
func (f *Follower) openNext() bool {
	path := f.o.Path()
	if path == "" {
		return false
	}
	if f.file != nil {
		was, err := f.file.Stat()
		if err != nil {
			return false
		}
		if now, err := os.Stat(path); err != nil || os.SameFile(was, now) {
			return false
		}
	}
	next, err := os.Open(path)
	if err != nil {
		return false
	}
	if f.file == nil {
		f.file = next
	} else {
		f.next = next
	}
	return true
}

func (f *Follower) Close() error {
	f.next.Close()
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

// Lines calls line with each line of r until r ends or line returns false. A
// carriage return ends a line too, so the states of a progress bar are lines.
// Empty lines and a last line without an end are dropped; a line is cut at limit
// bytes.
func Lines(r io.Reader, limit int, line func(string) bool) error {
	buf, part := make([]byte, 32<<10), []byte(nil)
	for {
		n, err := r.Read(buf)
		for b := buf[:n]; len(b) > 0; {
			i := bytes.IndexAny(b, "\r\n")
			end := i
			if i < 0 {
				end = len(b)
			}
			part = append(part, b[:min(end, limit-len(part))]...)
			if i < 0 {
				break
			}
			b = b[i+1:]
			if len(part) > 0 && !line(string(part)) {
				return nil
			}
			part = part[:0]
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
