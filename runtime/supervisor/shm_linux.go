package supervisor

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/runtime/confine"
)

// shmDir is where POSIX shared memory and named semaphores are files.
const shmDir = "/dev/shm"

// watchShm sends the names of files created in shared memory until stop is closed.
// Names are dropped when the channel is full. It is nil where inotify fails.
func watchShm(stop <-chan struct{}) <-chan string {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	if _, err := unix.InotifyAddWatch(fd, shmDir, unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		unix.Close(fd)
		return nil
	}
	f := os.NewFile(uintptr(fd), "inotify")
	names := make(chan string, 256)
	go func() {
		<-stop
		f.Close()
	}()
	go func() {
		defer close(names)
		buf := make([]byte, 16<<10)
		for {
			n, err := f.Read(buf)
			if err != nil {
				return
			}
			for _, name := range parseInotify(buf[:n]) {
				select {
				case names <- name:
				default:
				}
			}
		}
	}()
	return names
}

func parseInotify(b []byte) (names []string) {
	const head = int(unsafe.Sizeof(unix.InotifyEvent{}))
	for len(b) >= head {
		n := int(binary.NativeEndian.Uint32(b[12:16]))
		if n > len(b)-head {
			return names
		}
		if name, _, _ := bytes.Cut(b[head:head+n], []byte{0}); len(name) > 0 {
			names = append(names, string(name))
		}
		b = b[head+n:]
	}
	return names
}

// shmInode is the inode of a file in shared memory that this user or a confined engine
// owns; 0 for none.
func shmInode(name string) uint64 {
	var st unix.Stat_t
	if unix.Lstat(filepath.Join(shmDir, name), &st) != nil || int(st.Uid) != os.Getuid() && !confine.IsUser(int(st.Uid)) ||
		st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0
	}
	return st.Ino
}

func shmNames() (names []string) {
	entries, _ := os.ReadDir(shmDir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func removeShm(name string) { syscall.Unlink(filepath.Join(shmDir, name)) }

// sharedInUse returns which of the inodes a process has mapped or open. Names do not
// identify a file: a semaphore is mapped under its temporary name.
func sharedInUse(pid int, inodes map[uint64]bool) (found []uint64) {
	proc := "/proc/" + strconv.Itoa(pid)
	note := func(ino uint64) {
		if inodes[ino] && !slices.Contains(found, ino) {
			found = append(found, ino)
		}
	}
	if maps, err := os.ReadFile(proc + "/maps"); err == nil {
		for line := range bytes.Lines(maps) {
			if bytes.Contains(line, []byte(shmDir+"/")) {
				note(mappedInode(line))
			}
		}
	}
	if fds, err := os.ReadDir(proc + "/fd"); err == nil {
		for _, fd := range fds {
			if to, err := os.Readlink(proc + "/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, shmDir+"/") {
				var st unix.Stat_t
				if unix.Stat(proc+"/fd/"+fd.Name(), &st) == nil {
					note(st.Ino)
				}
			}
		}
	}
	return found
}

// mappedInode is the inode of a line of /proc/PID/maps:
// 7f2c00000000-7f2c10000000 rw-s 00000000 00:18 42       /dev/shm/psm_1
func mappedInode(line []byte) uint64 {
	f := bytes.Fields(line)
	if len(f) < 6 {
		return 0
	}
	n, _ := strconv.ParseUint(string(f[4]), 10, 64)
	return n
}
