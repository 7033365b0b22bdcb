package socket

import (
	"bufio"
	"encoding/base64"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/coder/websocket"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions/openai"
)

const (
	protocol    = "thaw.v1"
	protocolKey = "thaw.key." // and the key behind it

	websocketVersion = "13"
)

// handshake is what a request for a WebSocket says.
type handshake struct {
	nonce         string // Sec-WebSocket-Key
	offersV1      bool
	authorization string // of Authorization, or of a subprotocol
}

// readHandshake checks what RFC 6455 requires of a request, and reads the subprotocols.
func readHandshake(req *httpserver.Request) (h handshake, e *openai.Error) {
	nonces, versions, offered := 0, 0, false
	req.Fields(func(f httpserver.Field) bool {
		switch strings.ToLower(f.Name) {
		case "sec-websocket-key":
			nonces++
			h.nonce = strings.Clone(f.Value)
		case "sec-websocket-version":
			if versions++; f.Value != websocketVersion {
				versions = -100
			}
		case "sec-websocket-protocol":
			for p := range strings.SplitSeq(f.Value, ",") {
				p = strings.Trim(p, " \t")
				if key, ok := strings.CutPrefix(p, protocolKey); ok && key != "" {
					h.authorization = "Bearer " + key
				}
				offered = true
				h.offersV1 = h.offersV1 || p == protocol
			}
		}
		return true
	})
	nonce, err := base64.StdEncoding.DecodeString(h.nonce)
	switch {
	case versions != 1:
		return h, openai.New(openai.InvalidRequest, "Sec-WebSocket-Version is "+websocketVersion+".")
	case nonces != 1 || err != nil || len(nonce) != 16:
		return h, openai.New(openai.InvalidRequest, "Sec-WebSocket-Key is not 16 bytes in base64.")
	case offered && !h.offersV1:
		return h, openai.New(openai.InvalidRequest, "The subprotocols do not offer thaw.v1, the one that is spoken here.")
	}
	if a := req.Header("Authorization"); a != "" {
		h.authorization = strings.Clone(a)
	}
	return h, nil
}

const bufferBytes = 1 << 10 // of reads and of writes, per socket

// accept answers the handshake: the subprotocol in the answer is thaw.v1 alone.
func (h *handshake) accept(u *httpserver.Upgraded, c *frameConn) (*websocket.Conn, error) {
	r := &http.Request{Method: "GET", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {websocketVersion}, "Sec-Websocket-Key": {h.nonce},
	}}
	if h.offersV1 {
		r.Header.Set("Sec-WebSocket-Protocol", protocol)
	}
	return websocket.Accept(&switcher{u: u, conn: c, header: http.Header{}}, r, &websocket.AcceptOptions{
		Subprotocols: []string{protocol}, InsecureSkipVerify: true, // origins are checked before
	})
}

// switcher is the http.ResponseWriter of an upgraded connection.
type switcher struct {
	u      *httpserver.Upgraded
	conn   *frameConn
	header http.Header
}

func (s *switcher) Header() http.Header { return s.header }

func (s *switcher) Write(p []byte) (int, error) { return s.u.Write(p) }

func (s *switcher) WriteHeader(status int) {
	b := []byte("HTTP/1.1 " + strconv.Itoa(status) + " " + http.StatusText(status) + "\r\n")
	for name, values := range s.header {
		for _, v := range values {
			b = append(b, name+": "+v+"\r\n"...)
		}
	}
	s.u.Write(append(b, "\r\n"...))
}

func (s *switcher) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return s.conn, bufio.NewReadWriter(bufio.NewReaderSize(s.conn, bufferBytes), bufio.NewWriterSize(s.conn, bufferBytes)), nil
}

// field is the value of a header field that names the caller, as [auth.Secret] reads them.
func (h *handshake) field(name string) string {
	if name == "Authorization" {
		return h.authorization
	}
	return ""
}
