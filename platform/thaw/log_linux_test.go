package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/thaw-dev/thaw/testkit"
)

// fill writes a file that takes all room of a disk.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for {
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			if len(block) == 1 {
				return
			}
			block = block[:len(block)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDisk: a server whose data folder and log are on a disk that fills goes on
// answering, and starts a model (F9). It counts the lines that it could not write, and
// logs their number when there is room again.
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=8m"); err != nil {
		testkit.Missing(t, "no file system can be mounted here:", err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
	log, err := os.OpenFile(filepath.Join(disk, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p := spawnWithStderr(t, log, map[string]string{"tiny.yaml": tiny(t, "tiny", "")}, "--data", filepath.Join(disk, "data"))
	p.data = filepath.Join(disk, "data")
	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	p.listModels(2000)
	dropped := func() float64 {
		return value(p.do("GET", "/metrics", "").body, "thaw_log_lines_dropped_total")
	}
	p.eventually("dropped lines are counted", func() bool { return dropped() > 1000 })
	if r := p.chat("tiny", `"max_tokens":4`); r.status != 200 {
		t.Errorf("a cold start on a full disk: %d %v %s", r.status, r.err, r.body)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	p.eventually("the number of dropped lines is logged", func() bool {
		p.listModels(4)
		b, _ := io.ReadAll(io.NewSectionReader(log, 0, 8<<20))
		return strings.Contains(string(b), "lines of the log were dropped") && strings.Contains(string(b), "no space left on device")
	})
	if r := p.chat("tiny", `"max_tokens":4`); r.status != 200 {
		t.Errorf("with room again: %d %v %s", r.status, r.err, r.body)
	}
	p.endsWithin(patience)
}
