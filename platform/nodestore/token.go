package nodestore

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// ReadToken reads a token from a file.
func ReadToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("join token: %w", err)
	}
	t := strings.TrimSpace(string(b))
	if t == "" || len(t) > 512 || strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("join token: " + path + " holds no token")
	}
	return t, nil
}
