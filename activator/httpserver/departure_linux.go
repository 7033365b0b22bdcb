package httpserver

import (
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// watcher is one epoll set for all connections of a server. The set itself is
// parked on Go's netpoller, so it costs a goroutine and no thread. Its events
// carry a token, never a descriptor: descriptors are used again.
type watcher struct {
	file *os.File
	raw  syscall.RawConn
	done chan struct{}

	mu    sync.Mutex
	last  uint64
	conns map[uint64]*connState
}

func newWatcher() (*watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), "epoll")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	w := &watcher{file: f, raw: raw, done: make(chan struct{}), conns: map[uint64]*connState{}}
	go w.loop()
	return w, nil
}

func (w *watcher) loop() {
	defer close(w.done)
	var events [128]unix.EpollEvent
	for {
		n := 0
		err := w.raw.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events[:], 0)
			return n > 0
		})
		if err != nil {
			return // closed
		}
		for _, e := range events[:n] {
			token := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			w.mu.Lock()
			c := w.conns[token]
			w.mu.Unlock()
			if c != nil {
				c.clientLeft(ErrGone)
			}
		}
	}
}

func (w *watcher) close() {
	w.file.Close()
	<-w.done
}

func rawConn(c net.Conn) syscall.RawConn {
	if sc, ok := withoutTLS(c).(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// watchConn watches a connection; 0 if it cannot be watched here.
func watchConn(c *connState) (*watcher, uint64) {
	raw := rawConn(c.in.conn)
	if raw == nil {
		return nil, 0
	}
	x := c.server.watcher()
	if x == nil {
		return nil, 0
	}
	return x, x.add(raw, c)
}

func (w *watcher) add(raw syscall.RawConn, c *connState) uint64 {
	w.mu.Lock()
	w.last++
	token := w.last
	w.conns[token] = c
	w.mu.Unlock()
	e := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: int32(uint32(token)), Pad: int32(uint32(token >> 32))}
	if !w.control(raw, unix.EPOLL_CTL_ADD, &e) {
		w.mu.Lock()
		delete(w.conns, token)
		w.mu.Unlock()
		return 0
	}
	return token
}

// remove ends the watch that add began.
func (w *watcher) remove(c net.Conn, token uint64) {
	w.mu.Lock()
	delete(w.conns, token)
	w.mu.Unlock()
	if raw := rawConn(c); raw != nil {
		w.control(raw, unix.EPOLL_CTL_DEL, nil) // a closed one has left the set by itself
	}
}

// control changes the set while both descriptors are held open: a closed one's
// number may belong to something else by now.
func (w *watcher) control(raw syscall.RawConn, op int, e *unix.EpollEvent) (ok bool) {
	w.raw.Control(func(epfd uintptr) {
		raw.Control(func(fd uintptr) {
			ok = unix.EpollCtl(int(epfd), op, int(fd), e) == nil
		})
	})
	return ok
}
