package kit

import (
	"fmt"
	"os"
	"strings"
)

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
