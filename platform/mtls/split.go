package mtls

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"
)

// Split divides a listener into two: TLS connections whose handshake is done, and plain
// ones.
type Split struct {
	Secure, Plain net.Listener

	l             net.Listener
	secure, plain *lane
	config        *tls.Config
	log           *slog.Logger
	saidAt        time.Time // guarded by mu
	mu            sync.Mutex
}

const (
	greetFor  = 10 * time.Second // for the first byte and the handshake
	greetMost = 512              // connections in that phase
	sayEvery  = 5 * time.Second
)

// NewSplit returns a Split; it starts nothing.
func NewSplit(l net.Listener, config *tls.Config, log *slog.Logger) *Split {
	s := &Split{secure: newLane(l.Addr()), plain: newLane(l.Addr()), l: l, config: config, log: log}
	s.Secure, s.Plain = s.secure, s.plain
	return s
}

// Run accepts connections until ctx ends or l fails; it closes all three listeners.
func (s *Split) Run(ctx context.Context) error {
	var greeting sync.WaitGroup
	defer greeting.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	stop := context.AfterFunc(ctx, func() { s.l.Close() })
	defer stop()
	defer s.Secure.Close()
	defer s.Plain.Close()
	room := make(chan struct{}, greetMost)
	for {
		conn, err := s.l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
				continue
			}
			return err
		}
		select {
		case room <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		greeting.Go(func() {
			defer func() { <-room }()
			s.greet(ctx, conn)
		})
	}
}

// recordHandshake is the first byte of TLS; no HTTP method begins with it.
const recordHandshake = 0x16

func (s *Split) greet(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, greetFor)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	var first [1]byte
	if _, err := conn.Read(first[:]); err != nil {
		stop()
		conn.Close()
		return
	}
	var c net.Conn = &begun{Conn: conn, first: first[:]}
	to := s.plain
	if first[0] == recordHandshake {
		secure := tls.Server(c, s.config)
		if err := secure.HandshakeContext(ctx); err != nil {
			stop()
			closeReadable(conn)
			s.refused(conn.RemoteAddr(), err)
			return
		}
		c, to = secure, s.secure
	}
	if !stop() { // greetFor is over
		conn.Close()
		return
	}
	to.give(ctx, c)
}

// closeReadable closes a connection so that the other end can read the TLS alert: unread
// input would reset the connection and drop the alert.
func closeReadable(conn net.Conn) {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return
	}
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
	_, _ = io.CopyN(io.Discard, conn, 1<<16)
}

// refused logs a refused connection, rate limited. A peer that only closed its connection,
// because another controller leads, is not logged.
func (s *Split) refused(from net.Addr, err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return
	}
	s.mu.Lock()
	now := time.Now()
	say := s.saidAt.IsZero() || now.Sub(s.saidAt) >= sayEvery
	if say {
		s.saidAt = now
	}
	s.mu.Unlock()
	if say {
		s.log.Warn("a connection is not let in", "from", from, "error", Explain(err))
	}
}

// begun is a connection whose first byte was read already.
type begun struct {
	net.Conn
	first []byte
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) > 0 && len(p) > 0 {
		n := copy(p, b.first)
		b.first = b.first[n:]
		return n, nil
	}
	return b.Conn.Read(p)
}

// lane is a listener whose connections are passed to it by give.
type lane struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newLane(addr net.Addr) *lane {
	return &lane{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *lane) give(ctx context.Context, c net.Conn) {
	select {
	case l.conns <- c:
	case <-l.closed:
		c.Close()
	case <-ctx.Done():
		c.Close()
	}
}

func (l *lane) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *lane) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *lane) Addr() net.Addr { return l.addr }
