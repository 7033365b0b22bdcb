package hostinfo

import "testing"

func TestParseMeminfo(t *testing.T) {
	for text, want := range map[string]Memory{
		"MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:   2 kB\n": {16384 << 10, 2 << 10},
		"MemFree: 1 kB\nMemTotal: 1 kB\n":                                 {Total: 1 << 10},
		"MemAvailable: 7 kB":                                              {Available: 7 << 10},
		"":                                                                {},
		"MemTotal: x kB\nMemAvailable: y kB\n":                            {},
		"MemTotal: 5\nMemAvailable: 5 MB\n":                               {},
		"MemTotal: -5 kB\nMemAvailable: 0 kB\n":                           {},
		"MemTotal: 99999999999999999999 kB\nMemAvailable: 1125899906842625 kB\n": {},
	} {
		if m := parseMeminfo(text); m != want {
			t.Errorf("%q: %+v, want %+v", text, m, want)
		}
	}
}

func TestParseLimit(t *testing.T) {
	for text, want := range map[string]int64{"max\n": 0, "1073741824\n": 1 << 30, "9223372036854771712": 0, "": 0, "-1": 0} {
		if n := parseLimit(text); n != want {
			t.Errorf("%q: %d, want %d", text, n, want)
		}
	}
}

func TestReadMemory(t *testing.T) {
	if m, err := ReadMemory(); err != nil || m.Total <= 0 || m.Available > m.Total {
		t.Errorf("this machine: %+v, %v", m, err)
	}
}
