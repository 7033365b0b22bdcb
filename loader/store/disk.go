package store

import (
	"errors"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// diskSpace is what an ordinary user may still write on the store's disk, and below what
// unused checkpoints are evicted, in bytes.
func (s *Store) diskSpace() (free, low int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.layout.dir, &st); err != nil {
		return 0, 0, os.NewSyscallError("statfs", err)
	}
	low = max(s.o.KeepFree, int64(s.o.FreeShare*float64(st.Blocks)*float64(st.Bsize)))
	return int64(st.Bavail) * int64(st.Bsize), low, nil
}

// linkCount returns how many names a file has, and its inode.
func linkCount(fi os.FileInfo) (n uint64, inode uint64) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 1, 0
	}
	return uint64(st.Nlink), uint64(st.Ino)
}

var errBusy = errors.New("locked by another")

// fileLock is a file that is locked while it is open.
type fileLock struct{ *os.File }

// Close unlocks the file and closes it. Closed alone it would stay locked while another
// goroutine starts a process: a child has all open files until it executes its program.
func (l *fileLock) Close() error {
	return errors.Join(unix.Flock(int(l.Fd()), unix.LOCK_UN), l.File.Close())
}

// remove deletes the file while it is locked, so that a process that opened it before notices
// (lockFile), and unlocks it. A nil lock is no file.
func (l *fileLock) remove() {
	if l != nil {
		_ = os.Remove(l.Name())
		l.Close()
	}
}

// lockFile opens path and locks it. The file may be unlinked while this waits (its
// folder was evicted or committed), and a lock on an unlinked file excludes no other
// process: then it starts again, and fails with os.ErrNotExist if the folder is gone.
// Without wait it returns errBusy if another process holds the lock; with it the wait
// is unbounded: only for locks held for a moment.
func lockFile(path string, exclusive, wait bool) (*fileLock, error) {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	if !wait {
		how |= unix.LOCK_NB
	}
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		for {
			err = unix.Flock(int(f.Fd()), how)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, errBusy
			}
			return nil, &os.PathError{Op: "flock", Path: path, Err: err}
		}
		held, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		named, err := os.Stat(path)
		if err == nil && os.SameFile(held, named) {
			return &fileLock{f}, nil
		}
		f.Close()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
}

// diskFix is the way out where the store's folder cannot be used; "" where none is known.
func diskFix(err error) string {
	is := func(any ...error) bool {
		return slices.ContainsFunc(any, func(e error) bool { return errors.Is(err, e) })
	}
	switch {
	case is(os.ErrPermission, os.ErrNotExist, unix.EROFS, unix.ENOTDIR):
		return "--data names a folder that this user may write to"
	case is(unix.ENOLCK, unix.ENOSYS, unix.ENOTSUP):
		return "the folder's file system lacks what the store needs, such as locks on some network mounts: name one on a local disk with --data"
	case is(unix.EIO, unix.ESTALE):
		return "the disk or its mount has failed: see dmesg, or name a folder on another disk with --data"
	}
	return ""
}

func isDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
