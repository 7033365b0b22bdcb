package report

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	v := []float64{4, 1, 3, 2}
	for _, c := range []struct{ q, want float64 }{{0, 1}, {0.5, 2.5}, {1, 4}, {0.9, 3.7}} {
		if got := Quantile(v, c.q); got < c.want-1e-9 || got > c.want+1e-9 {
			t.Errorf("Quantile(%v) = %v, want %v", c.q, got, c.want)
		}
	}
	if v[0] != 4 || Quantile(nil, 0.5) != 0 || Quantile([]float64{7}, 0.99) != 7 {
		t.Error("sorted its input, or lost an edge")
	}
	if s := Summarize(v); s.N != 4 || s.Min != 1 || s.Max != 4 || s.P25 != 1.75 {
		t.Errorf("%+v", s)
	}
}

func TestTable(t *testing.T) {
	tab := Table{Head: []string{"phase", "p50"}}
	tab.Add("queue", "90 µs")
	tab.Add("spawn", "12.5 ms")
	var b strings.Builder
	if err := tab.Text(&b); err != nil {
		t.Fatal(err)
	}
	if want := "phase      p50\nqueue    90 µs\nspawn  12.5 ms\n"; b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	if want := "| phase | p50 |\n| --- | ---: |\n| queue | 90 µs |\n| spawn | 12.5 ms |\n"; tab.Markdown() != want {
		t.Errorf("got\n%s", tab.Markdown())
	}
}

func TestMillis(t *testing.T) {
	for s, want := range map[float64]string{0: "0", 0.00009: "90 µs", 0.00123: "1.23 ms", 0.0123: "12.3 ms", 1.5: "1500 ms"} {
		if got := Millis(s); got != want {
			t.Errorf("Millis(%v) = %s, want %s", s, got, want)
		}
	}
}

func TestTickStep(t *testing.T) {
	for _, end := range []float64{1e-6, 0.0007, 0.03, 0.04, 0.049, 0.3, 1, 7, 60, 3599} {
		if n := end / tickStep(end); n < 2 || n > 10 {
			t.Errorf("%v s: %v marks", end, n)
		}
	}
}

func TestPicturesAreSelfContained(t *testing.T) {
	f := Waterfall{Title: `a <b> & "c"`, Sub: "sub", Bars: []Bar{{"spawn", 0, 0.012, "spawn"}, {"load", 0.012, 0.03, "load"}, {"warmup", 0.042, 0, "warmup"}}}
	d := xml.NewDecoder(strings.NewReader(f.SVG()))
	for {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("no XML: %v", err)
		}
	}
	p := NewPage("A <title>")
	p.Heading("H")
	p.Text("1 < 2")
	p.Picture(f)
	p.Table(&Table{Head: []string{"a"}, Rows: [][]string{{"<x>"}}})
	s := p.String()
	for _, bad := range []string{"<script", "src=", "href=", "@import", "url(", "<x>", "<title>A <title>"} {
		if strings.Contains(s, bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	if strings.Count(strings.ReplaceAll(s, `xmlns="http://www.w3.org/2000/svg"`, ""), "http") != 0 {
		t.Error("the page names an address")
	}
	if (Waterfall{}).SVG() == "" {
		t.Error("no bars, no picture")
	}
}

func TestWriteAndMade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	m := NewProvenance("ColdStartBench", []string{"coldstart", "-n", "3"}, time.Unix(1e9, 5))
	if m.APIVersion != "thaw.dev/v1" || m.Command != "thaw bench coldstart -n 3" || m.Machine.Cores < 1 || m.Commit == "" ||
		m.Machine.String() == "" {
		t.Errorf("%+v", m)
	}
	if err := WriteJSON(dir, "x.json", m); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "x.json"))
	if err != nil || !strings.Contains(string(b), `"at": "2001-09-09T01:46:40Z"`) {
		t.Errorf("%s %v", b, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); len(left) != 0 {
		t.Error("left a half-written file")
	}
}
