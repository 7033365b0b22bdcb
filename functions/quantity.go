package functions

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Bytes is a size in bytes. In files it is a number with an optional binary
// (Ki, Mi, Gi, Ti) or decimal (k, M, G, T) suffix, as Kubernetes writes it.
type Bytes int64

var suffixes = []struct {
	suffix string
	factor float64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12},
}

// ParseBytes reads a size such as 64Mi, 1.5G or 1024.
func ParseBytes(s string) (Bytes, error) {
	num, factor := s, 1.0
	for _, u := range suffixes {
		if strings.HasSuffix(s, u.suffix) {
			num, factor = strings.TrimSuffix(s, u.suffix), u.factor
			break
		}
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || f < 0 || math.IsNaN(f) || f*factor >= math.MaxInt64 || strings.ContainsAny(num, "eExX_nN ") ||
		factor == 1 && f != math.Trunc(f) {
		return 0, fmt.Errorf("%q is no size: want a number with Ki, Mi, Gi, Ti, k, M, G or T, such as 64Mi", Clip(s))
	}
	return Bytes(f * factor), nil
}

// String is the shortest exact spelling with a binary suffix.
func (b Bytes) String() string {
	for i := 3; i >= 0; i-- {
		f := Bytes(suffixes[i].factor)
		if b >= f && b%f == 0 {
			return strconv.FormatInt(int64(b/f), 10) + suffixes[i].suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// Human formats b with at most one decimal and a binary suffix (1.5 GiB).
func (b Bytes) Human() string {
	for i := 3; i >= 0; i-- {
		if f := suffixes[i].factor; float64(b) >= f {
			return strconv.FormatFloat(math.Round(float64(b)/f*10)/10, 'f', -1, 64) + " " + suffixes[i].suffix + "B"
		}
	}
	return strconv.FormatInt(int64(b), 10) + " B"
}

func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

func (b *Bytes) UnmarshalText(t []byte) (err error) {
	*b, err = ParseBytes(string(t))
	return err
}

// MarshalJSON writes a number: JSON is for programs, and bytes are what they count in.
func (b Bytes) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, int64(b), 10), nil }

// UnmarshalJSON reads a number, or a size in quotes as files have it.
func (b *Bytes) UnmarshalJSON(t []byte) error { return b.UnmarshalText(bytes.Trim(t, `"`)) }

// CPU is processor time, in thousandths of a processor. In files it is a number of
// processors, or of thousandths with an m, as Kubernetes writes it: 2, 0.5, 500m.
type CPU int64

// ParseCPU reads 2, 1.5 or 250m.
func ParseCPU(s string) (CPU, error) {
	num, factor := s, 1e3
	if strings.HasSuffix(s, "m") {
		num, factor = strings.TrimSuffix(s, "m"), 1
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || f < 0 || math.IsNaN(f) || f*factor >= 1e12 || strings.ContainsAny(num, "eExX_nN ") {
		return 0, fmt.Errorf("%q is no number of processors: want such as 2, 0.5 or 500m", Clip(s))
	}
	return CPU(math.Ceil(f * factor)), nil
}

// String formats c as in files: 2 or 500m.
func (c CPU) String() string {
	if c%1000 == 0 {
		return strconv.FormatInt(int64(c/1000), 10)
	}
	return strconv.FormatInt(int64(c), 10) + "m"
}

// Human formats c in words: 0.025 processors, 1 processor.
func (c CPU) Human() string {
	if c == 1000 {
		return "1 processor"
	}
	return strconv.FormatFloat(float64(c)/1000, 'f', -1, 64) + " processors"
}

func (c CPU) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalJSON reads a number of processors, or one in quotes as files have it.
func (c *CPU) UnmarshalJSON(t []byte) error { return c.UnmarshalText(bytes.Trim(t, `"`)) }

func (c *CPU) UnmarshalText(t []byte) (err error) {
	*c, err = ParseCPU(string(t))
	return err
}

// Duration is a time span; in files it is written as Go writes it: 30s, 5m, 1h30m.
type Duration time.Duration

// tooLong matches a duration that time.ParseDuration refuses for its length alone.
var tooLong = regexp.MustCompile(`^(\d+(\.\d*)?(h|m|s|ms|us|µs|ns))+$`)

// ParseDuration reads 30s, 5m, 1h; a bare 0 is allowed.
func ParseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if d < 0 || strings.HasPrefix(s, "-") || err != nil && tooLong.MatchString(s) {
		return 0, fmt.Errorf("%q is out of range: want 0 to 2562047h, such as 30s, 5m or 1h", Clip(s))
	}
	if err != nil {
		hint := ""
		if strings.HasSuffix(s, "d") || strings.HasSuffix(s, "w") {
			hint = "; a day is 24h"
		}
		return 0, fmt.Errorf("%q is no duration: want such as 30s, 5m or 1h%s", Clip(s), hint)
	}
	return Duration(d), nil
}

// Std is the span as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String drops zero parts: 5m, not 5m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d *Duration) UnmarshalText(t []byte) (err error) {
	*d, err = ParseDuration(string(t))
	return err
}
