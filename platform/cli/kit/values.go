package kit

import (
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// Count is a number, or negative for auto: as many as the machine has.
type Count int

func (c Count) MarshalText() ([]byte, error) {
	if c < 0 {
		return []byte("auto"), nil
	}
	return strconv.AppendInt(nil, int64(c), 10), nil
}

func (c *Count) UnmarshalText(b []byte) error {
	if string(b) == "auto" {
		*c = -1
		return nil
	}
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 0 {
		return fmt.Errorf("%q is neither auto nor a number", functions.Clip(string(b)))
	}
	*c = Count(n)
	return nil
}

// Size is a number of bytes, or 0 for auto: what the machine has.
type Size functions.Bytes

func (s Size) MarshalText() ([]byte, error) {
	if s == 0 {
		return []byte("auto"), nil
	}
	return functions.Bytes(s).MarshalText()
}

func (s *Size) UnmarshalText(b []byte) error {
	if string(b) == "auto" {
		*s = 0
		return nil
	}
	if err := (*functions.Bytes)(s).UnmarshalText(b); err != nil {
		return fmt.Errorf("%q is neither auto nor a size such as 64Gi", functions.Clip(string(b)))
	}
	return nil
}

// CheckPeers validates the addresses that --peer gives.
func CheckPeers(urls []string) error {
	for _, s := range urls {
		if u, err := url.Parse(s); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" ||
			strings.Trim(u.Path, "/") != "" {
			return Usage("https://HOST:PORT, as its --peer-addr says", "--peer %q is not the address of a node", functions.Clip(s))
		}
	}
	return nil
}

// ReadToken reads a token from a file: one word of 16 to 512 printable ASCII
// characters. Errors do not contain the token.
func ReadToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("the token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if len(token) < 16 || len(token) > 512 || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s holds no token: it takes one word of 16 to 512 ASCII letters, digits and signs", path)
	}
	return token, nil
}
