package kit

import (
	"strings"
	"testing"
	"time"
)

func TestShortSpans(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", 350 * time.Microsecond: "350µs", 1300 * time.Nanosecond: "1µs", 999 * time.Microsecond: "999µs", 1400 * time.Microsecond: "1ms", 2 * time.Second: "2s"} {
		if got := Span(d); got != want {
			t.Errorf("%d ns: %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int]string{0: "0 GPUs", 1: "1 GPU", 2: "2 GPUs"} {
		if got := CountOf(n, "GPU"); got != want {
			t.Error(got)
		}
	}
}

// TestWideCharacters: columns stand below each other whatever width a terminal gives to what
// is in them.
func TestWideCharacters(t *testing.T) {
	k := Kind[[2]string]{Columns: []Column[[2]string]{
		{Head: "SOURCE", Cell: func(v [2]string) string { return v[0] }}, {Head: "FROM", Cell: func(v [2]string) string { return v[1] }},
	}}
	var out strings.Builder
	PrintTable(&out, k, [][2]string{{"模型文件夹", "a"}, {"mode\u0301le", "b"}, {"a-long-name", "c"}}, false, nil)
	want := "SOURCE       FROM\n模型文件夹   a\nmode\u0301le       b\na-long-name  c\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := fitColumns("模型文件夹", 6); got != "模型…" {
		t.Error(got)
	}
}
