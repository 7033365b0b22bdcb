package mount

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const (
	// fsType is the file system type by which Sweep finds thaw's mounts.
	fsType = "fuse.thaw"
	// maxRead bytes of one read; the kernel's own bound without a sysctl.
	maxRead = 1 << 20
	// readAheadKiB is how far the kernel reads before the reader, in KiB, where it may
	// be set: its own bound for FUSE is 128 KiB, a fault at a time.
	readAheadKiB = 8 << 10
	// maxBackground is how many reads of the kernel's own may be under way; each
	// holds a buffer of at most most.
	maxBackground = 32
	// for ever, as far as the kernel is concerned: nothing here changes.
	cacheForever = 24 * time.Hour
)

// Mount is a folder of files that are still arriving.
type Mount struct {
	dir    string
	done   chan struct{} // closed when the kernel has unmounted
	closed chan struct{} // closed by Close
	once   sync.Once
}

// New mounts files at dir, an empty folder, and returns when it can be used. An error
// that wraps ErrUnavailable means that this machine cannot mount. The first failed read of
// each file is logged. The caller closes the mount.
func New(dir string, files []File, from Bytes, log *slog.Logger) (*Mount, error) {
	fd, err := attach(dir)
	if err != nil {
		return nil, err
	}
	return serveMount(fd, dir, files, from, log)
}

// serveMount serves files at dir, where the device fd is mounted.
func serveMount(fd int, dir string, files []File, from Bytes, log *slog.Logger) (*Mount, error) {
	m := &Mount{dir: dir, done: make(chan struct{}), closed: make(chan struct{})}
	root := &rootInode{files: files, sharedState: &sharedState{from: from, log: log, createdAt: time.Now(), logged: make(map[string]bool)}}
	long := cacheForever
	options := &fs.Options{
		EntryTimeout: &long, AttrTimeout: &long, NegativeTimeout: &long,
		UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
		MountOptions: fuse.MountOptions{
			MaxBackground: maxBackground, MaxWrite: maxRead, MaxReadAhead: maxRead, DisableXAttrs: true,
			Name: "thaw", FsName: "thaw", Logger: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
	}
	server, err := fuse.NewServer(fs.NewNodeFS(root, options), "/dev/fd/"+strconv.Itoa(fd), &options.MountOptions)
	if err != nil {
		unix.Close(fd)
		detach(dir)
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	go func() {
		defer close(m.done)
		server.Serve() // ends when the kernel lets go, and closes fd
	}()
	err = server.WaitMount()
	if err == nil {
		err = withoutDevice(fd, func() error {
			if err := disablePoll(dir); err != nil {
				return err
			}
			raiseReadAhead(dir)
			return nil
		})
	}
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return m, nil
}

// withoutDevice calls use, which may access the mount, on a thread that does not have the
// device fd open. A thread whose request this process has taken and not answered cannot be
// killed. Were the device among its files, the kernel would neither end the process nor
// the request.
func withoutDevice(fd int, use func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			done <- fmt.Errorf("unshare: %w", err)
			return
		}
		unix.Close(fd)
		done <- use()
	}()
	return <-done
}

// attach opens the device with close-on-exec, which go-fuse does not, and mounts it.
func attach(dir string) (fd int, err error) {
	fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("%w: /dev/fuse: %w", ErrUnavailable, err)
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,max_read=%d", fd, os.Geteuid(), os.Getegid(), maxRead)
	if os.Geteuid() == 0 {
		data += ",allow_other" // engines have users of their own; the folder above is closed to others
	}
	if err := unix.Mount("thaw", dir, fsType, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY, data); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("%w: mount: %w", ErrUnavailable, err)
	}
	return fd, nil
}

func detach(dir string) error { return unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH) }

// disablePoll makes the kernel learn that these files cannot be polled. Before that, a
// file opened by this very process is polled by the runtime's last free thread, which
// then waits for this server.
func disablePoll(dir string) error {
	fd, err := unix.Open(filepath.Join(dir, ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the mount does not answer: %w", err)
	}
	defer unix.Close(fd)
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	if errors.Is(err, unix.EINTR) {
		err = nil
	}
	return err
}

// raiseReadAhead raises the kernel's read-ahead, where permitted.
func raiseReadAhead(dir string) {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return
	}
	name := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev))
	_ = os.WriteFile(name, []byte(strconv.Itoa(readAheadKiB)), 0) // slower without
}

// TryUnmount unmounts if no file is open, and reports whether it did; Close then costs
// nothing.
func (m *Mount) TryUnmount() bool {
	select {
	case <-m.closed:
		return true
	default:
	}
	if unix.Unmount(m.dir, 0) != nil {
		return false
	}
	m.Close()
	return true
}

// Close unmounts and ends the connection: waiting reads fail, and open files return
// errors. It may be called more than once.
func (m *Mount) Close() {
	m.once.Do(func() {
		close(m.closed)
		// An error means that it is unmounted already. A forced end makes go-fuse
		// cancel the running reads.
		_ = detach(m.dir)
	})
	<-m.done
}

// Sweep unmounts every thaw mount below dir. They belong to a process that is gone:
// the caller has none there yet.
func Sweep(dir string) error {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != fsType || !strings.HasPrefix(m.Mountpoint, strings.TrimRight(dir, "/")+"/"), false
	})
	for _, m := range mounts {
		if e := detach(m.Mountpoint); e != nil {
			err = errors.Join(err, fmt.Errorf("%s stays mounted: %w", m.Mountpoint, e))
		}
	}
	return err
}

// sharedState is what all nodes of the tree share.
type sharedState struct {
	from      Bytes
	log       *slog.Logger
	createdAt time.Time

	mu     sync.Mutex // guards logged
	logged map[string]bool
}

// complain logs the first error of a file; engines retry often.
func (s *sharedState) complain(name string, off int64, err error) {
	s.mu.Lock()
	logged := s.logged[name]
	s.logged[name] = true
	s.mu.Unlock()
	if !logged {
		s.log.Warn("a reader of an arriving file gets an error", "file", name, "offset", off, "err", err)
	}
}

// rootInode is the root; the folders below it are plain inodes.
type rootInode struct {
	fs.Inode
	*sharedState
	files []File
}

// OnAdd builds the whole tree: it is small and never changes.
func (i *rootInode) OnAdd(ctx context.Context) {
	for _, file := range i.files {
		at := i.EmbeddedInode()
		dirs, base := path.Split(file.Name)
		for part := range strings.SplitSeq(strings.Trim(dirs, "/"), "/") {
			if part == "" {
				continue
			}
			next := at.GetChild(part)
			if next == nil {
				next = at.NewPersistentInode(ctx, &fs.Inode{}, fs.StableAttr{Mode: syscall.S_IFDIR})
				at.AddChild(part, next, true)
			}
			at = next
		}
		n := &fileInode{sharedState: i.sharedState, file: file}
		at.AddChild(base, at.NewPersistentInode(ctx, n, fs.StableAttr{Mode: syscall.S_IFREG}), true)
	}
}

type fileInode struct {
	fs.Inode
	*sharedState
	file File
}

var (
	_ fs.NodeOpener    = (*fileInode)(nil)
	_ fs.NodeReader    = (*fileInode)(nil)
	_ fs.NodeGetattrer = (*fileInode)(nil)
	_ fs.NodeFlusher   = (*fileInode)(nil)
)

// Open answers ENOSYS: the kernel then asks once per mount, and keeps pages from then
// on.
func (i *fileInode) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, 0, syscall.ENOSYS
}

// Flush answers ENOSYS for the same reason.
func (i *fileInode) Flush(context.Context, fs.FileHandle) syscall.Errno { return syscall.ENOSYS }

func (i *fileInode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Nlink, out.Size = syscall.S_IFREG|0o444, 1, uint64(i.file.Size)
	out.Blksize, out.Blocks = maxRead, (out.Size+511)/512
	out.SetTimes(&i.createdAt, &i.createdAt, &i.createdAt)
	return 0
}

func (i *fileInode) Read(ctx context.Context, _ fs.FileHandle, b []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if off >= i.file.Size {
		return fuse.ReadResultData(nil), 0
	}
	b = b[:min(int64(len(b)), i.file.Size-off)]
	read, err := i.from.ReadAt(ctx, i.file.Name, b, off)
	if read == len(b) {
		return fuse.ReadResultData(b), 0
	}
	select {
	case <-ctx.Done():
		return nil, syscall.EINTR // a signal to the reader, or Close
	default:
	}
	i.complain(i.file.Name, off, err)
	return nil, syscall.EIO
}
