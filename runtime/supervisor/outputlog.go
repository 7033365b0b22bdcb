package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// LogBytes bounds each of the two files of a log.
const LogBytes = 8 << 20

// tailBytes of a log are held in memory: enough for a traceback.
const tailBytes = 16 << 10

// Bounds of the logs of ended processes; the oldest are removed first.
const (
	keepLogs     = 256
	keepLogBytes = 512 << 20
)

// LogPath is the log of a process in the folder of its supervisor, where its start names no
// other. It stays when the process has ended, within the bounds above.
func LogPath(dir, id string) string { return filepath.Join(dir, "logs", id+".log") }

// pruneLogs removes the oldest files of a folder of logs beyond the bounds.
func pruneLogs(dir string, inUse map[string]bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	var files []os.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && !inUse[filepath.Join(dir, e.Name())] {
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b os.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	var bytes int64
	for i, f := range files {
		if bytes += f.Size(); i >= keepLogs || bytes > keepLogBytes {
			os.Remove(filepath.Join(dir, f.Name()))
		}
	}
}

// reopenAfter is the pause between two tries to open a log.
const reopenAfter = time.Second

// outputLog copies the output of one process to a rotated log. It goes on reading when
// the log cannot be opened or written; otherwise the engine would block. What is not
// written is counted, and the count is logged once writing works.
type outputLog struct {
	path string
	max  int64
	pipe *os.File // read end
	done chan struct{}

	// Owned by the copying goroutine.
	file    *os.File // nil while the log cannot be opened
	size    int64
	tried   time.Time // when opening it failed
	dropped int       // bytes that were not written and not reported
	err     error     // why

	mu   sync.Mutex
	tail []byte
}

// newOutputLog returns the log and the write end of its pipe, for the child.
func newOutputLog(path string, max int64) (*outputLog, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	j := &outputLog{path: path, max: max, pipe: r, done: make(chan struct{})}
	j.open()
	return j, w, nil
}

func (l *outputLog) open() {
	err := os.MkdirAll(filepath.Dir(l.path), 0o700)
	if err == nil {
		l.file, err = os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	}
	if err != nil {
		l.file, l.tried, l.err = nil, time.Now(), err
		return
	}
	if st, err := l.file.Stat(); err == nil {
		l.size = st.Size()
	}
}

// close closes the pipe and the log, which may be nil.
func (l *outputLog) close() {
	l.pipe.Close()
	l.file.Close()
}

// copy runs until every writer has closed the pipe or finish interrupts it.
func (l *outputLog) copy() {
	defer close(l.done)
	defer l.close()
	buf := make([]byte, 32<<10)
	for {
		n, err := l.pipe.Read(buf)
		if n > 0 {
			l.write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

func (l *outputLog) write(b []byte) {
	l.mu.Lock()
	l.tail = append(l.tail, b...)
	if done := len(l.tail) - tailBytes; done > tailBytes {
		l.tail = append(l.tail[:0], l.tail[done:]...)
	}
	l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(b)) > l.max {
		l.rotate()
	}
	if l.file == nil && time.Since(l.tried) >= reopenAfter {
		l.open()
	}
	if l.file == nil {
		l.dropped += len(b)
		return
	}
	if l.dropped > 0 {
		n, err := fmt.Fprintf(l.file, "\nthaw: %d bytes of output were dropped here: %v\n", l.dropped, l.err)
		if l.size += int64(n); err == nil {
			l.dropped = 0
		}
	}
	n, err := l.file.Write(b)
	l.size += int64(n)
	if err != nil {
		l.err = err
		l.dropped += len(b) - n
	}
}

func (l *outputLog) rotate() {
	l.file.Close()
	l.file, l.size = nil, 0
	if err := os.Rename(l.path, l.path+".1"); err != nil && !os.IsNotExist(err) {
		os.Remove(l.path)
	}
	l.open()
}

// finish waits, at most within, for the last lines of an ended process.
func (l *outputLog) finish(within time.Duration) {
	select {
	case <-l.done:
	case <-time.After(within):
		// A process that left the group still holds the pipe.
		l.pipe.SetReadDeadline(time.Unix(1, 0))
		<-l.done
	}
}

func (l *outputLog) lastBytes() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tail
	if len(t) > tailBytes {
		t = t[len(t)-tailBytes:]
	}
	return string(t)
}
