package remote

import "bytes"

// minSecret is the least length of a key that is masked in answers. Shorter ones, such as
// EMPTY of a server that wants none, are words that an answer may hold.
const minSecret = 16

var masked = []byte("***")

// keyMask replaces a key in a body that passes in pieces of any size. It is for one
// goroutine; a nil one replaces nothing.
type keyMask struct {
	key    []byte
	buffer []byte
	held   int // bytes at the end of buffer that may begin a key
}

func newKeyMask(key string) *keyMask {
	if len(key) < minSecret {
		return nil
	}
	return &keyMask{key: []byte(key)}
}

// pass returns what p becomes, which is valid until the next call. What may begin a key is
// kept back for the next piece; last is the last one.
func (m *keyMask) pass(p []byte, last bool) []byte {
	if m == nil {
		return p
	}
	n := copy(m.buffer, m.buffer[len(m.buffer)-m.held:])
	m.buffer = append(m.buffer[:n], p...)
	if bytes.Contains(m.buffer, m.key) {
		m.buffer = bytes.ReplaceAll(m.buffer, m.key, masked)
	}
	if m.held = 0; last {
		return m.buffer
	}
	for k := min(len(m.key)-1, len(m.buffer)); k > 0; k-- {
		if bytes.HasSuffix(m.buffer, m.key[:k]) {
			m.held = k
			break
		}
	}
	return m.buffer[:len(m.buffer)-m.held]
}
