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

// open opens the log, if it can be opened.
func (j *outputLog) open() {
	err := os.MkdirAll(filepath.Dir(j.path), 0o700)
	if err == nil {
		j.file, err = os.OpenFile(j.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	}
	if err != nil {
		j.file, j.tried, j.err = nil, time.Now(), err
		return
	}
	if st, err := j.file.Stat(); err == nil {
		j.size = st.Size()
	}
}

// abandon closes the log of a process that has not started.
func (j *outputLog) abandon() {
	j.pipe.Close()
	if j.file != nil {
		j.file.Close()
	}
}

// copy runs until every writer has closed the pipe or finish interrupts it.
func (j *outputLog) copy() {
	defer close(j.done)
	buf := make([]byte, 32<<10)
	for {
		n, err := j.pipe.Read(buf)
		if n > 0 {
			j.write(buf[:n])
		}
		if err != nil {
			break
		}
	}
	j.pipe.Close()
	if j.file != nil {
		j.file.Close()
	}
}

func (j *outputLog) write(b []byte) {
	j.mu.Lock()
	j.tail = append(j.tail, b...)
	if done := len(j.tail) - tailBytes; done > tailBytes {
		j.tail = append(j.tail[:0], j.tail[done:]...)
	}
	j.mu.Unlock()
	if j.size > 0 && j.size+int64(len(b)) > j.max {
		j.rotate()
	}
	if j.file == nil && time.Since(j.tried) >= reopenAfter {
		j.open()
	}
	if j.file == nil {
		j.dropped += len(b)
		return
	}
	if j.dropped > 0 {
		n, err := fmt.Fprintf(j.file, "\nthaw: %d bytes of output were dropped here: %v\n", j.dropped, j.err)
		if j.size += int64(n); err == nil {
			j.dropped = 0
		}
	}
	n, err := j.file.Write(b)
	j.size += int64(n)
	if err != nil {
		j.err = err
		j.dropped += len(b) - n
	}
}

func (j *outputLog) rotate() {
	if j.file != nil {
		j.file.Close()
	}
	j.file, j.size = nil, 0
	if err := os.Rename(j.path, j.path+".1"); err != nil && !os.IsNotExist(err) {
		os.Remove(j.path)
	}
	j.open()
}

// finish waits, at most within, for the last lines of an ended process.
func (j *outputLog) finish(within time.Duration) {
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-j.done:
	case <-t.C:
		// A process that left the group still holds the pipe.
		j.pipe.SetReadDeadline(time.Unix(1, 0))
		<-j.done
	}
}

// lastBytes is the end of the log.
func (j *outputLog) lastBytes() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	t := j.tail
	if len(t) > tailBytes {
		t = t[len(t)-tailBytes:]
	}
	return string(t)
}
