package supervisor

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/runtime/hostinfo"
)

// note is what a keeper leaves in its folder, for the one after it.
type note struct {
	PID  int    `json:"pid"`
	Boot string `json:"boot"`
}

// takeLock holds the folder until the file is closed, by us or by our death.
func takeLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "keeper.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrRunning
		}
		return nil, err
	}
	return f, nil
}

func writeNote(dir string) error {
	b, err := json.Marshal(note{PID: os.Getpid(), Boot: hostinfo.BootID()})
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, "keeper.json"), b, 0o600)
}

// endPredecessor kills what a keeper that was killed left of its session. The
// lock is ours, so it is dead.
func endPredecessor(dir string, log *slog.Logger) {
	b, err := os.ReadFile(filepath.Join(dir, "keeper.json"))
	if err != nil {
		return
	}
	var n note
	if json.Unmarshal(b, &n) != nil || n.Boot == "" || n.Boot != hostinfo.BootID() || n.PID == os.Getpid() {
		return
	}
	if killed := endSession(n.PID); killed > 0 {
		log.Warn("killed what an earlier keeper left", "keeper", n.PID, "processes", killed)
	}
}
