package kit

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// TestLines: on a terminal one line is rewritten; elsewhere a line per change
// or 5 s.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		c := NewTerminal(nil, io.Discard, &b, func(string) string { return "" })
		l := c.NewProgressLine()
		for i := range 12 {
			l.Show("staging", "tiny staging "+string(rune('a'+i)))
			time.Sleep(time.Second)
		}
		l.Show("ready", "tiny ready\x07")
		l.Clear()
		if want := "tiny staging a\ntiny staging f\ntiny staging k\ntiny ready\\a\n"; b.String() != want {
			t.Errorf("got %q, want %q", b.String(), want)
		}
		b.Reset()
		c.ErrTTY = true
		l = c.NewProgressLine()
		l.Show("staging", "one")
		l.Show("staging", strings.Repeat("x", 200))
		l.Clear()
		l.Clear()
		if want := "\r\x1b[Kone\r\x1b[K" + strings.Repeat("x", 78) + "…\r\x1b[K"; b.String() != want {
			t.Errorf("got %q, want %q", b.String(), want)
		}
	})
}

func TestRate(t *testing.T) {
	var r Rate
	now := time.Unix(0, 0)
	for i := range 100 {
		r.Add(now, functions.Bytes(i)*100)
		now = now.Add(time.Second)
	}
	if r.value < 99 || r.value > 101 {
		t.Errorf("%f", r.value)
	}
	if got := r.Add(now.Add(time.Second), 5); got < 99 { // another file began
		t.Errorf("%f", got)
	}
}

// TestFit: of a long line of progress the numbers stay and the bar goes.
func TestFit(t *testing.T) {
	long := "llama-3-70b-instruct staging " + Bar(41) + " 41% 53.2 GiB/131.4 GiB 1.2 GiB/s eta 1m4s"
	for _, x := range []struct {
		text    string
		columns int
		want    string
	}{
		{long, 200, long},
		{long, 79, "llama-3-70b-instruct staging 41% 53.2 GiB/131.4 GiB 1.2 GiB/s eta 1m4s"},
		{long, 40, "llama-3-70b-instruct staging 41% 53.2 G…"},
		{"größer", 6, "größer"},
		{"größer", 5, "größ…"},
		{"a [text] in brackets", 10, "a [text] …"},
	} {
		if got := fitColumns(x.text, x.columns); got != x.want {
			t.Errorf("%q in %d: %q, want %q", x.text, x.columns, got, x.want)
		}
	}
}
