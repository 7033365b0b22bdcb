package controlstream

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/platform/mtls"
)

// Endpoint is the path of a controller's control stream.
const Endpoint = "/link"

const (
	protocol = "thaw-control/4" // the Content-Type of both directions; all others are refused

	// leaderField of a 421 is the address of the leading controller.
	leaderField = "Thaw-Leader"

	dialTimeout = 3 * time.Second // of a dial with the exchange of HTTP heads
	pingEvery   = time.Second     // a live peer sends a message at least this often
	deadAfter   = 5 * time.Second // a peer that sends or reads nothing for this long is gone

	maxUp   = 16 << 20 // bytes of a peer's message
	maxDown = 64 << 20 // bytes of a controller's message

)

var (
	errTooLong = errors.New("a message is longer than any may be")
	errSilent  = fmt.Errorf("the peer sent nothing for %v", deadAfter)
	errStuck   = fmt.Errorf("the peer read nothing for %v", deadAfter)
	errLost    = errors.New("the connection is lost")
)

// stream is one end of a control stream: an HTTP/2 request whose body carries the peer's
// messages and whose response carries the controller's. Each direction is one gob stream,
// which describes its types once. At most one goroutine reads and one writes.
type stream struct {
	in      input
	dec     *gob.Decoder
	maxRead int // bytes of a message that is read

	out      bytes.Buffer
	enc      *gob.Encoder
	maxWrite int // bytes of a message that is written
	send     func([]byte) error

	silence, blocked *time.Timer // end the stream after deadAfter
	once             sync.Once
	ended            chan struct{} // closed by end, after cause is set
	cause            error
	close            func() // closes the connection
}

func newStream(in io.Reader, maxRead int, send func([]byte) error, maxWrite int, close func()) *stream {
	s := &stream{in: input{r: bufio.NewReader(in)}, maxRead: maxRead, send: send, maxWrite: maxWrite, ended: make(chan struct{}), close: close}
	s.dec, s.enc = gob.NewDecoder(&s.in), gob.NewEncoder(&s.out)
	s.silence = time.AfterFunc(deadAfter, func() { s.end(errSilent) })
	s.blocked = time.AfterFunc(deadAfter, func() { s.end(errStuck) })
	s.silence.Stop()
	s.blocked.Stop()
	return s
}

// end closes the connection. The first cause counts.
func (s *stream) end(cause error) {
	s.once.Do(func() {
		s.cause = cause
		close(s.ended)
		s.close()
	})
}

// failure returns the cause if the stream was ended, which made err.
func (s *stream) failure(err error) error {
	select {
	case <-s.ended:
		return s.cause
	default:
		return err
	}
}

// keptBuffer is the largest buffer that is reused for the next message.
const keptBuffer = 1 << 20

// write sends one message. A message that the other end would refuse is not sent.
func (s *stream) write(message any) error {
	if s.out.Cap() > keptBuffer {
		s.out = bytes.Buffer{}
	}
	s.out.Reset()
	if err := s.enc.Encode(message); err != nil {
		return fmt.Errorf("a message cannot be encoded: %w", err)
	}
	if s.out.Len() > s.maxWrite {
		return fmt.Errorf("%w: %d bytes", errTooLong, s.out.Len())
	}
	s.blocked.Reset(deadAfter)
	err := s.send(s.out.Bytes())
	s.blocked.Stop()
	if err != nil {
		return s.failure(fmt.Errorf("%w: %w", errLost, err))
	}
	return nil
}

// read reads the next message. Memory is allocated as bytes arrive, 10 MB ahead of them
// at most, and never for more than maxRead bytes.
func (s *stream) read(message any) error {
	s.in.left = s.maxRead
	s.silence.Reset(deadAfter)
	err := s.dec.Decode(message)
	s.silence.Stop()
	switch {
	case err == nil:
		return nil
	case s.in.err != nil:
		return s.failure(fmt.Errorf("%w: %w", errLost, s.in.err))
	}
	return fmt.Errorf("a message cannot be decoded: %w", err)
}

// input bounds the bytes that the decoder reads for one message.
type input struct {
	r    *bufio.Reader
	left int
	err  error // of r
}

func (i *input) Read(b []byte) (n int, err error) {
	if i.left == 0 {
		return 0, errTooLong
	}
	n, i.err = i.r.Read(b[:min(len(b), i.left)])
	i.left -= n
	return n, i.err
}

func (i *input) ReadByte() (b byte, err error) {
	if i.left == 0 {
		return 0, errTooLong
	}
	b, i.err = i.r.ReadByte()
	i.left--
	return b, i.err
}

// isClosed reports whether an error is only the end of a connection.
func isClosed(err error) bool {
	return errors.Is(err, errLost) || errors.Is(err, net.ErrClosed) || errors.Is(err, context.Canceled)
}

// http2 returns the bounds of a connection: the size of frames, which is that of the other
// end's buffer, and how much a peer that does not read is sent.
func http2() *http.HTTP2Config {
	return &http.HTTP2Config{MaxReadFrameSize: 16 << 10, MaxReceiveBufferPerStream: 256 << 10}
}

type connKey struct{}

// Configure prepares a server that has a Hub among its handlers: it serves HTTP/1 and
// HTTP/2, also without TLS, and a Hub can close its peers' connections.
func Configure(s *http.Server) {
	s.Protocols = protocols(true, true)
	s.HTTP2 = http2()
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
}

// protocols returns HTTP/1 and HTTP/2 over TLS, or HTTP/2 without TLS, or all.
func protocols(secure, plain bool) *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(secure)
	p.SetHTTP2(secure)
	p.SetUnencryptedHTTP2(plain)
	return p
}

// equalSecrets compares in constant time.
func equalSecrets(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// acceptStream answers a permitted request for a control stream; else it sends the error
// and returns nil.
func acceptStream(w http.ResponseWriter, r *http.Request, tokens []string) *stream {
	secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || !slices.ContainsFunc(tokens, func(token string) bool { return token != "" && equalSecrets(secret, token) }) {
		http.Error(w, "the token is not the one of this cluster", http.StatusUnauthorized)
		return nil
	}
	if r.Method != http.MethodPost || r.ProtoMajor != 2 || r.Header.Get("Content-Type") != protocol {
		http.Error(w, "this speaks "+protocol, http.StatusUpgradeRequired)
		return nil
	}
	conn, ok := r.Context().Value(connKey{}).(net.Conn)
	if !ok {
		http.Error(w, "this server is not configured for control streams", http.StatusInternalServerError)
		return nil
	}
	control := http.NewResponseController(w)
	return newStream(r.Body, maxUp, func(b []byte) error {
		if _, err := w.Write(b); err != nil {
			return err
		}
		return control.Flush()
	}, maxDown, func() { conn.Close() })
}

// refusal is a response that opens no control stream.
type refusal struct {
	status int
	leader string // address of the leading controller; "" if unknown
}

func (r *refusal) Error() string {
	switch r.status {
	case http.StatusUnauthorized:
		return "the controller refuses our token"
	case http.StatusMisdirectedRequest:
		return "that controller does not lead"
	case http.StatusForbidden:
		return "the controller accepts control streams with a certificate only, and ours is without TLS"
	case http.StatusUpgradeRequired:
		return "the controller speaks another version of the protocol than " + protocol
	}
	return fmt.Sprintf("the controller answers %d", r.status)
}

// openStream connects to the controller at addr and requests a control stream, with the
// newest certificate and token.
func (c *Client) openStream(ctx context.Context, addr string) (*stream, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	token := c.o.Token
	if c.o.Reread != nil {
		newest, err := c.o.Reread()
		if err != nil {
			return nil, err
		}
		token = newest
	}
	transport := &http.Transport{
		DialContext:        func(ctx context.Context, _, addr string) (net.Conn, error) { return c.o.Dial(ctx, addr) },
		DisableCompression: true,
		Protocols:          protocols(false, true),
		HTTP2:              http2(),
	}
	scheme, secure := "http", (*tls.Conn)(nil)
	if c.o.TLS != nil {
		config, err := c.o.TLS()
		if err != nil {
			return nil, err
		}
		config = config.Clone()
		config.NextProtos = []string{"h2", "http/1.1"}
		config.VerifyConnection = func(s tls.ConnectionState) error {
			if s.NegotiatedProtocol != "h2" { // a controller of an older protocol
				return &refusal{status: http.StatusUpgradeRequired}
			}
			return nil
		}
		transport.DialTLSContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
			conn, err := c.o.Dial(ctx, addr)
			if err != nil {
				return nil, err
			}
			if secure, err = mtls.Connect(ctx, conn, config); err != nil {
				return nil, err
			}
			return secure, nil
		}
		scheme, transport.Protocols = "https", protocols(true, false)
	}
	conn, err := transport.NewClientConn(ctx, scheme, addr)
	if err != nil {
		return nil, mtls.Explain(err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	s, err := requestStream(context.WithoutCancel(ctx), conn, scheme+"://"+addr+Endpoint, token)
	if !stop() {
		s, err = nil, ctx.Err()
	}
	if err != nil {
		conn.Close()
		if secure != nil {
			// the alert with which a server refuses our certificate: HTTP/2 may not report it
			_, alert := secure.Read(make([]byte, 1))
			if e, ok := errors.AsType[*net.OpError](alert); ok && e.Op == "remote error" {
				err = alert
			}
		}
		return nil, mtls.Explain(err)
	}
	return s, nil
}

func requestStream(ctx context.Context, conn *http.ClientConn, url, token string) (*stream, error) {
	body, up := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", protocol)
	res, err := conn.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	switch {
	case res.StatusCode != http.StatusOK:
		return nil, &refusal{res.StatusCode, res.Header.Get(leaderField)}
	case res.Header.Get("Content-Type") != protocol:
		return nil, &refusal{status: http.StatusUpgradeRequired}
	}
	send := func(b []byte) error { _, err := up.Write(b); return err }
	return newStream(res.Body, maxDown, send, maxUp, func() { conn.Close() }), nil
}
