package shim

import (
	"errors"
	"io"
	"os"
	"time"
)

// followEvery is how often the engine's log is looked at.
const followEvery = 200 * time.Millisecond

// copyLog copies the engine's log to out until the engine has ended and all of it
// is out. path says where it is, "" while there is none. The keeper turns the log
// over by size: then the file under the name is another.
func copyLog(ended <-chan struct{}, path func() string, out io.Writer) {
	var f *os.File
	defer func() {
		if f != nil {
			f.Close()
		}
	}()
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for last := false; ; {
		if f == nil {
			if p := path(); p != "" {
				f, _ = os.Open(p) // it may be about to be made
			}
		}
		if f != nil {
			io.Copy(out, f) // what cannot be written is lost, and nobody waits for it
			if rotated(f, path()) {
				io.Copy(out, f) // the last of it
				f.Close()
				f = nil
				continue
			}
		}
		if last {
			return
		}
		select {
		case <-tick.C:
		case <-ended:
			last = true
		}
	}
}

// rotated reports whether the file under a path is another.
func rotated(f *os.File, path string) bool {
	was, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	return err == nil && !os.SameFile(was, now)
}
