package nodestore

import (
	"strings"
	"testing"
)

func TestMemory(t *testing.T) {
	for text, want := range map[string]int64{
		"MemTotal:       16384 kB\nMemFree: 1 kB\n": 16384 << 10,
		"MemFree: 1 kB\nMemTotal: 1 kB\n":           1 << 10,
		"":                                          0, "MemTotal: x kB\n": 0, "MemTotal: 5\n": 0, "MemTotal: -5 kB\n": 0, "MemTotal: 99999999999999999999 kB\n": 0,
	} {
		if n, err := parseMeminfo(text); n != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %d %v", text, n, err)
		}
	}
	for text, want := range map[string]int64{"max\n": 0, "1073741824\n": 1 << 30, "9223372036854771712": 0, "": 0, "-1": 0} {
		if n := parseLimit(text); n != want {
			t.Errorf("%q: %d", text, n)
		}
	}
	if m, err := Memory(); err != nil || m <= 0 {
		t.Errorf("this machine: %v %v", m, err)
	}
	if !strings.Contains(Machine(), "/") {
		t.Errorf("machine %q", Machine())
	}
}
