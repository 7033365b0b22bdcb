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
	conns map[uint64]*conn
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
	x := &watcher{file: f, raw: raw, done: make(chan struct{}), conns: map[uint64]*conn{}}
	go x.loop()
	return x, nil
}

func (x *watcher) loop() {
	defer close(x.done)
	var events [128]unix.EpollEvent
	for {
		n := 0
		err := x.raw.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events[:], 0)
			return n > 0
		})
		if err != nil {
			return // closed
		}
		for _, e := range events[:n] {
			token := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			x.mu.Lock()
			w := x.conns[token]
			x.mu.Unlock()
			if w != nil {
				w.clientLeft(ErrGone)
			}
		}
	}
}

func (x *watcher) close() {
	x.file.Close()
	<-x.done
}

func rawConn(c net.Conn) syscall.RawConn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// watchConn watches w's connection; 0 if it cannot be watched here.
func watchConn(w *conn) (*watcher, uint64) {
	raw := rawConn(w.Conn)
	if raw == nil {
		return nil, 0
	}
	x := w.s.watcher()
	if x == nil {
		return nil, 0
	}
	return x, x.add(raw, w)
}

func (x *watcher) add(raw syscall.RawConn, w *conn) uint64 {
	x.mu.Lock()
	x.last++
	token := x.last
	x.conns[token] = w
	x.mu.Unlock()
	e := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: int32(uint32(token)), Pad: int32(uint32(token >> 32))}
	if !x.control(raw, unix.EPOLL_CTL_ADD, &e) {
		x.mu.Lock()
		delete(x.conns, token)
		x.mu.Unlock()
		return 0
	}
	return token
}

// remove ends the watch that add began.
func (x *watcher) remove(w *conn, token uint64) {
	x.mu.Lock()
	delete(x.conns, token)
	x.mu.Unlock()
	if raw := rawConn(w.Conn); raw != nil {
		x.control(raw, unix.EPOLL_CTL_DEL, nil) // a closed one has left the set by itself
	}
}

// control changes the set while both descriptors are held open: a closed one's
// number may belong to something else by now.
func (x *watcher) control(raw syscall.RawConn, op int, e *unix.EpollEvent) (ok bool) {
	x.raw.Control(func(epfd uintptr) {
		raw.Control(func(fd uintptr) {
			ok = unix.EpollCtl(int(epfd), op, int(fd), e) == nil
		})
	})
	return ok
}
