package kit

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// Count is a number, or auto: as many as the machine has.
type Count struct {
	Auto bool
	N    int
}

func (c Count) String() string {
	if c.Auto {
		return "auto"
	}
	return strconv.Itoa(c.N)
}

func (c Count) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

func (c *Count) UnmarshalText(b []byte) error {
	if string(b) == "auto" {
		*c = Count{Auto: true}
		return nil
	}
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 0 {
		return fmt.Errorf("%q is neither auto nor a number", functions.Clip(string(b)))
	}
	*c = Count{N: n}
	return nil
}

// Size is a number of bytes, or auto: what the machine has.
type Size struct {
	Auto bool
	functions.Bytes
}

func (s Size) String() string {
	if s.Auto {
		return "auto"
	}
	return s.Bytes.String()
}

func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s *Size) UnmarshalText(b []byte) error {
	if string(b) == "auto" {
		*s = Size{Auto: true}
		return nil
	}
	n, err := functions.ParseBytes(string(b))
	if err != nil {
		return fmt.Errorf("%q is neither auto nor a size such as 64Gi", functions.Clip(string(b)))
	}
	*s = Size{Bytes: n}
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
