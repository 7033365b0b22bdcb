package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// socketRoom is the longest folder whose sockets fit into an address: 103 bytes (107
// on Linux) less the name that an engine gives a socket.
const socketRoom = 103 - 37

// ScratchRoot is the parent of the scratch folders of a supervisor's processes: in its
// folder dir, or in the system's temporary folder if that path is too long for sockets.
func ScratchRoot(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	root := filepath.Join(dir, "tmp")
	if len(root)+1+len(shortHash("")) <= socketRoom {
		return root
	}
	return filepath.Join(os.TempDir(), "thaw-"+strconv.Itoa(os.Getuid())+"-"+shortHash(dir))
}

// Scratch is the folder of one process, for Process.Scratch.
func Scratch(root, id string) string { return filepath.Join(root, shortHash(id)) }

func shortHash(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:6])
}

// makeScratch makes a folder that only this user can open, with files by name.
func makeScratch(path string, files map[string]string) error {
	root := filepath.Dir(path)
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	// In a shared folder another user may have created it first.
	st, err := os.Lstat(root)
	if err != nil {
		return err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !st.IsDir() || ok && int(sys.Uid) != os.Getuid() {
		return fmt.Errorf("%s is not a folder of this user", root)
	}
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(path, filepath.Base(name)), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}
