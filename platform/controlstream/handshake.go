package controlstream

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// Endpoint is the path of a controller's control stream.
const Endpoint = "/link"

// leaderField of a 421 is the address of the leading controller.
const leaderField = "Thaw-Leader"

// shakeFor bounds a dial, and then the exchange of HTTP heads.
const shakeFor = 3 * time.Second

// equalSecrets compares in constant time.
func equalSecrets(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// acceptUpgrade reports whether a request is a permitted upgrade; else it sends the error.
func acceptUpgrade(w http.ResponseWriter, r *http.Request, tokens []string) bool {
	secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	known := false
	for _, token := range tokens {
		if token != "" && equalSecrets(secret, token) {
			known = true
		}
	}
	if !ok || !known {
		http.Error(w, "the token is not the one of this cluster", http.StatusUnauthorized)
		return false
	}
	if r.Method != http.MethodGet || !strings.EqualFold(r.Header.Get("Upgrade"), protocol) {
		w.Header().Set("Upgrade", protocol)
		http.Error(w, "this speaks "+protocol, http.StatusUpgradeRequired)
		return false
	}
	return true
}

// hijack takes the connection from the HTTP server; nil, after an error response, if
// that fails.
func hijack(w http.ResponseWriter) *pipe {
	h, ok := w.(http.Hijacker)
	if !ok {
		http.Error(w, "this connection cannot be upgraded", http.StatusHTTPVersionNotSupported)
		return nil
	}
	conn, rw, err := h.Hijack()
	if err != nil {
		http.Error(w, "this connection cannot be upgraded", http.StatusInternalServerError)
		return nil
	}
	_ = conn.SetDeadline(time.Now().Add(shakeFor)) // the server may have set its own
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol); err != nil {
		conn.Close()
		return nil
	}
	return newPipe(conn, rw.Reader, maxUp)
}

// refusal is a response to a dial that is not an upgrade.
type refusal struct {
	status int
	leader string // address of the leading controller; "" if unknown
}

func (e *refusal) Error() string {
	switch e.status {
	case http.StatusUnauthorized:
		return "the controller does not take our token"
	case http.StatusMisdirectedRequest:
		return "that controller does not lead"
	case http.StatusForbidden:
		return "the controller takes links with a certificate only, and we dialled without TLS"
	case http.StatusUpgradeRequired:
		return "the controller speaks another version of the protocol"
	}
	return fmt.Sprintf("the controller answers %d", e.status)
}

// dialUpgrade requests an upgrade from the controller at the other end of conn.
func dialUpgrade(ctx context.Context, conn net.Conn, host, token string) (*pipe, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(shakeFor)); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\nAuthorization: Bearer %s\r\n\r\n", Endpoint, host, protocol, token); err != nil {
		return nil, err
	}
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols {
		return nil, &refusal{res.StatusCode, res.Header.Get(leaderField)}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return newPipe(conn, in, maxDown), nil
}
