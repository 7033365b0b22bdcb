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

// supervisorNote identifies a supervisor to its successor in the same folder.
type supervisorNote struct {
	PID  int    `json:"pid"`
	Boot string `json:"boot"`
}

// acquireLock locks the folder until the file is closed or this process ends. Flags may be
// os.O_CREATE, for a supervisor: its clients write nothing into a folder that may be removed.
func acquireLock(dir string, flags int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "supervisor.lock"), os.O_RDWR|flags, 0o600)
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
	b, err := json.Marshal(supervisorNote{PID: os.Getpid(), Boot: hostinfo.BootID()})
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, "supervisor.json"), b, 0o600)
}

// endPredecessor kills the remaining session of a killed supervisor. The caller holds
// the lock, so that supervisor is dead.
func endPredecessor(dir string, log *slog.Logger) {
	b, err := os.ReadFile(filepath.Join(dir, "supervisor.json"))
	if err != nil {
		return
	}
	var n supervisorNote
	if json.Unmarshal(b, &n) != nil || n.Boot == "" || n.Boot != hostinfo.BootID() || n.PID == os.Getpid() {
		return
	}
	if killed := endSession(n.PID); killed > 0 {
		log.Warn("killed processes of an earlier supervisor", "supervisor", n.PID, "processes", killed)
	}
}
