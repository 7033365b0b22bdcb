package socket

import (
	"bufio"
	"encoding/binary"
	"encoding/json/v2"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Opcodes of RFC 6455, section 5.2.
const (
	opContinuation = 0x0
	opText         = 0x1
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xa

	final = 0x80 // the bit FIN
)

// wireFrame is the bytes of a masked frame; first is the byte with FIN, the reserved bits
// and the opcode.
func wireFrame(first byte, payload string) string {
	return wireFrameOf(first, payload, lengthForm(len(payload)), true)
}

// lengthForm is 0 for a length in 7 bits, 2 or 8 for one in so many bytes more.
func lengthForm(n int) int {
	switch {
	case n < 126:
		return 0
	case n <= 0xffff:
		return 2
	}
	return 8
}

func wireFrameOf(first byte, payload string, form int, masked bool) string {
	b := []byte{first, 0}
	switch form {
	case 0:
		b[1] = byte(len(payload))
	case 2:
		b[1] = 126
		b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
	case 8:
		b[1] = 127
		b = binary.BigEndian.AppendUint64(b, uint64(len(payload)))
	}
	if !masked {
		return string(b) + payload
	}
	b[1] |= 0x80
	key := [4]byte{0x37, 0xfa, 0x21, 0x3d}
	b = append(b, key[:]...)
	for i := range len(payload) {
		b = append(b, payload[i]^key[i%4])
	}
	return string(b)
}

func wireClose(code int, reason string) string {
	return wireFrame(final|opClose, string(binary.BigEndian.AppendUint16(nil, uint16(code)))+reason)
}

// wirePing is a ping of the protocol thaw.v1 as a text of n bytes; it is answered by a pong.
func wirePing(n int) string {
	const begin, end = `{"type":"ping"`, `}`
	return begin + strings.Repeat(" ", n-len(begin)-len(end)) + end
}

// wireConn is a raw connection to the server, upgraded.
type wireConn struct {
	net.Conn
	in   *bufio.Reader
	head *http.Response
}

func (r *rig) dialRaw(fields string) (*wireConn, error) {
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(testTimeout))
	fmt.Fprint(c, "GET /ws/raw HTTP/1.1\r\nHost: "+r.addr+"\r\n"+fields+"\r\n")
	w := &wireConn{Conn: c, in: bufio.NewReader(c)}
	w.head, err = http.ReadResponse(w.in, &http.Request{Method: "GET"})
	return w, err
}

// read returns what the server sends next: "text TYPE" of a frame of the protocol, with the
// code of an error; "pong PAYLOAD", "ping", "close CODE", or "end".
func (w *wireConn) read() string {
	var b [2]byte
	if _, err := io.ReadFull(w.in, b[:]); err != nil {
		return "end"
	}
	n := int(b[1])
	switch {
	case b[1]&0x80 != 0:
		return "a masked frame of a server"
	case b[0]&0x70 != 0 || b[0]&final == 0:
		return fmt.Sprintf("a frame that begins with %x", b[0])
	case n == 126:
		var l [2]byte
		io.ReadFull(w.in, l[:])
		n = int(binary.BigEndian.Uint16(l[:]))
	case n == 127:
		return "a long frame"
	}
	p := make([]byte, n)
	if _, err := io.ReadFull(w.in, p); err != nil {
		return "half a frame"
	}
	switch b[0] &^ final {
	case opText:
		var f frame
		if err := json.Unmarshal(p, &f, json.MatchCaseInsensitiveNames(true)); err != nil {
			return err.Error()
		}
		return strings.TrimSpace("text " + f.Type + " " + f.Code)
	case opPong:
		return "pong " + string(p)
	case opClose:
		if n < 2 {
			return fmt.Sprintf("close with %d bytes", n)
		}
		return fmt.Sprint("close ", binary.BigEndian.Uint16(p))
	}
	return fmt.Sprintf("opcode %d", b[0]&^final)
}

const helloKey = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

const hello = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" + helloKey

// TestRFC6455 has the cases of RFC 6455 that a server must get right, on raw connections. Of
// what is sent all bytes are there at once, and again each by itself.
func TestRFC6455(t *testing.T) {
	text, ping, part := byte(final|opText), byte(final|opPing), byte(opText)
	alive := wireFrame(text, wirePing(15)) // a pong for it shows that the connection goes on
	rune4 := "\U0001F9CA"                  // four bytes in UTF-8
	long := strings.Repeat("x", 126)
	type row struct{ section, name, send, want string }
	rows := []row{
		{"5.1", "a frame without a mask", wireFrameOf(text, wirePing(15), 0, false) + alive, "end"},
		{"5.1", "a control frame without a mask", wireFrameOf(ping, "a", 0, false) + alive, "end"},
		{"5.2", "reserved bit 1 without an extension", wireFrame(text|0x40, "a") + alive, "close 1002, end"},
		{"5.2", "reserved bit 2", wireFrame(text|0x20, "a") + alive, "close 1002, end"},
		{"5.2", "reserved bit 3 of a ping", wireFrame(ping|0x10, "a") + alive, "close 1002, end"},
		{"5.2", "an empty text", wireFrame(text, "") + alive, "text pong"},
		{"5.2", "a length of 64 bits with the first bit set", "\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff1234" + alive, "end"},
		{"5.2", "a frame beyond all bounds, of which only the head comes", "\x81\xff\x00\x00\x00\x01\x00\x00\x00\x001234" + strings.Repeat("x", maxDiscarded+1), "close 1009, end"},
		{"5.4", "a message in two fragments", wireFrame(part, wirePing(20)[:7]) + wireFrame(final|opContinuation, wirePing(20)[7:]), "text pong"},
		{"5.4", "a fragment for each byte", fragments(wirePing(40), 1) + alive, "text pong, text pong"},
		{"5.4", "empty fragments", wireFrame(part, "") + wireFrame(opContinuation, "") + wireFrame(opContinuation, wirePing(15)) + wireFrame(final|opContinuation, ""), "text pong"},
		{"5.4", "a ping within a message", wireFrame(part, wirePing(20)[:7]) + wireFrame(ping, "in between") + wireFrame(final|opContinuation, wirePing(20)[7:]), "pong in between, text pong"},
		{"5.4", "a continuation of nothing", wireFrame(final|opContinuation, "a") + alive, "close 1002, end"},
		{"5.4", "a continuation behind a whole message", alive + wireFrame(opContinuation, "a") + alive, "text pong, close 1002, end"},
		{"5.4", "a new message within another", wireFrame(part, "a") + alive, "close 1002, end"},
		{"5.5", "a ping in fragments", wireFrame(opPing, "a") + wireFrame(final|opContinuation, "b") + alive, "close 1002, end"},
		{"5.5", "a close in fragments", wireFrame(opClose, "\x03\xe8") + alive, "close 1002, end"},
		{"5.5", "a ping of 125 bytes", wireFrame(ping, long[:125]) + alive, "pong " + long[:125] + ", text pong"},
		{"5.5", "a ping of 126 bytes", wireFrame(ping, long) + alive, "close 1002, end"},
		{"5.5", "a pong of 126 bytes", wireFrame(final|opPong, long) + alive, "close 1002, end"},
		{"5.5", "a close of 126 bytes", wireClose(1000, long[:124]) + alive, "close 1002, end"},
		{"5.5.1", "a close without a code", wireFrame(final|opClose, ""), "close with 0 bytes, end"},
		{"5.5.1", "a close with half a code", wireFrame(final|opClose, "\x03"), "close 1002, end"},
		{"5.5.1", "a close with a reason of 123 bytes", wireClose(1000, long[:123]), "close 1000, end"},
		{"5.5.1", "a close whose reason is no text", wireClose(1000, "\xff"), "close 1000, end"}, // 1007 would be exact
		{"5.5.1", "messages and pings behind a close", wireClose(1000, "") + wireFrame(ping, "late") + alive, "close 1000, end"},
		{"5.5.1", "two closes", wireClose(1001, "") + wireClose(1000, ""), "close 1001, end"},
		{"5.5.1", "a close within a message", wireFrame(part, "a") + wireClose(1000, ""), "close 1000, end"},
		{"5.5.2", "pings are answered in order", wireFrame(ping, "1") + wireFrame(ping, "") + alive + wireFrame(ping, "3"), "pong 1, pong , text pong, pong 3"},
		{"5.5.2", "a ping with bytes that are no text", wireFrame(ping, "\x00\xff\xfe") + alive, "pong \x00\xff\xfe, text pong"},
		{"5.5.3", "a pong that was not asked for", wireFrame(final|opPong, "a") + alive, "text pong"},
		{"5.6", "a binary message", wireFrame(final|opBinary, wirePing(15)) + alive, "text error invalid_request, text pong"},
		{"7.1.5", "the end of the stream without a close", alive, "text pong, end"},
		{"8.1", "a character in two fragments", wireFrame(part, rune4[:1]) + wireFrame(opContinuation, rune4[1:3]) + wireFrame(final|opContinuation, rune4[3:]) + alive, "text intent_change, text pong"},
		{"8.1", "a character that is cut off", wireFrame(part, "a ") + wireFrame(final|opContinuation, rune4[:3]) + alive, "text error invalid_request, text pong"},
		{"8.1", "a surrogate", wireFrame(text, "\xed\xa0\x80") + alive, "text error invalid_request, text pong"},
		{"8.1", "an overlong slash", wireFrame(text, "\xc0\xaf") + alive, "text error invalid_request, text pong"},
		{"8.1", "beyond U+10FFFF", wireFrame(text, "\xf4\x90\x80\x80") + alive, "text error invalid_request, text pong"},
		{"8.1", "no text, again and again", strings.Repeat(wireFrame(text, "\xff"), maxFaults) + alive, strings.Repeat("text error invalid_request, ", maxFaults) + "close 1007"},
	}
	for _, n := range []int{125, 126, 127, 128, 0xffff, maxMessage} {
		rows = append(rows, row{"5.2", fmt.Sprintf("a text of %d bytes", n), wireFrame(text, wirePing(n)), "text pong"})
	}
	for _, form := range []int{2, 8} { // a sender must not, and a receiver need not mind
		rows = append(rows, row{"5.2", fmt.Sprintf("15 as a length of %d bytes", form), wireFrameOf(text, wirePing(15), form, true), "text pong"})
	}
	for _, op := range []byte{0x3, 0x4, 0x5, 0x6, 0x7, 0xb, 0xc, 0xd, 0xe, 0xf} {
		rows = append(rows, row{"5.2", fmt.Sprintf("opcode %x", op), wireFrame(final|op, "a") + alive, "close 1002, end"})
	}
	for _, code := range []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999} {
		rows = append(rows, row{"7.4", fmt.Sprint("code ", code), wireClose(code, "bye"), fmt.Sprintf("close %d, end", code)})
	}
	for _, code := range []int{0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535} {
		rows = append(rows, row{"7.4", fmt.Sprint("code ", code), wireClose(code, ""), "close 1002, end"})
	}
	r := newRig(t, nil)
	for _, x := range rows {
		for _, each := range []int{len(x.send), 1} {
			if each == 1 && len(x.send) > 1<<10 {
				continue
			}
			w, err := r.dialRaw(hello)
			if err != nil || w.head.StatusCode != 101 {
				t.Fatal(w.head, err)
			}
			sent := make(chan bool)
			go func() { // the server may end the connection meanwhile
				defer close(sent)
				for at := 0; at < len(x.send); at += each {
					if _, err := w.Write([]byte(x.send[at:min(at+each, len(x.send))])); err != nil {
						return
					}
				}
				if strings.HasPrefix(x.section, "7.1.5") {
					w.Conn.(*net.TCPConn).CloseWrite()
				}
			}()
			for _, want := range strings.Split(x.want, ", ") {
				if got := w.read(); got != want {
					t.Errorf("section %s, %s, %d bytes at a time: %.150q, want %.150q of %.150q", x.section, x.name, each, got, want, x.want)
					break
				}
			}
			w.Close()
			<-sent
		}
	}
}

// fragments is a text in fragments of n bytes.
func fragments(text string, n int) (all string) {
	for at := 0; at < len(text); at += n {
		first := byte(opContinuation)
		if at == 0 {
			first = opText
		}
		if at+n >= len(text) {
			first |= final
		}
		all += wireFrame(first, text[at:min(at+n, len(text))])
	}
	return all
}

// TestRFC6455Handshake has the cases of section 4.2.
func TestRFC6455Handshake(t *testing.T) {
	r := newRig(t, nil)
	for _, x := range []struct {
		section, name, fields string
		status                int
	}{
		{"1.3", "the example's key", hello + "Sec-WebSocket-Protocol: thaw.v1\r\n", 101},
		{"4.2.1", "names and values in other cases", strings.ToLower(strings.Replace(hello, helloKey, "", 1)) + "CONNECTION: keep-alive\r\nSEC-" + helloKey[4:], 101},
		{"4.2.1", "other tokens in Connection", strings.Replace(hello, "Connection: Upgrade", "Connection: keep-alive, Upgrade", 1), 101},
		{"9.1", "an extension that is not spoken", hello + "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n", 101},
		{"4.2.1", "no key", strings.Replace(hello, helloKey, "", 1), 400},
		{"4.2.1", "two keys", hello + helloKey, 400},
		{"4.2.1", "a key of 15 bytes", strings.Replace(hello, "dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25j", 1), 400},
		{"4.2.1", "a key that is no base64", strings.Replace(hello, "dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZQ=!", 1), 400},
		{"4.2.1", "no Upgrade", strings.Replace(hello, "Upgrade: websocket\r\n", "", 1), 400},
		{"4.2.1", "no Connection", strings.Replace(hello, "Connection: Upgrade\r\n", "", 1), 400},
		{"4.4", "version 8", strings.Replace(hello, "Version: 13", "Version: 8", 1), 400},
		{"4.4", "no version", strings.Replace(hello, "Sec-WebSocket-Version: 13\r\n", "", 1), 400},
		{"4.2.2", "no subprotocol that is spoken", hello + "Sec-WebSocket-Protocol: chat, superchat\r\n", 400},
	} {
		w, err := r.dialRaw(x.fields)
		if err != nil {
			t.Fatal(x.name, err)
		}
		h := w.head.Header
		if w.head.StatusCode != x.status {
			b, _ := io.ReadAll(w.head.Body)
			t.Errorf("section %s, %s: %d %s, want %d", x.section, x.name, w.head.StatusCode, b, x.status)
		}
		if x.status == 101 &&
			(h.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" || h.Get("Sec-WebSocket-Extensions") != "" ||
				!strings.EqualFold(h.Get("Upgrade"), "websocket")) {
			t.Errorf("section %s, %s: %v", x.section, x.name, h)
		}
		if x.section == "4.4" && h.Get("Sec-WebSocket-Version") != "13" {
			t.Errorf("section %s, %s: the answer does not say which version is spoken: %v", x.section, x.name, h)
		}
		if want := map[bool]string{true: "thaw.v1"}[x.section == "1.3"]; h.Get("Sec-WebSocket-Protocol") != want {
			t.Errorf("section %s, %s: subprotocol %q", x.section, x.name, h.Get("Sec-WebSocket-Protocol"))
		}
		if x.status == 101 { // half-open: the server hears nothing more, and ends
			w.Conn.(*net.TCPConn).CloseWrite()
			if got := w.read(); got != "end" {
				t.Errorf("section 7.1.5, %s: %s behind the end", x.name, got)
			}
		}
		w.Close()
	}
}
