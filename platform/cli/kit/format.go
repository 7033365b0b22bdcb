package kit

import (
	"fmt"
	"regexp"
	"time"
)

// Span is a duration for people.
func Span(d time.Duration) string {
	switch {
	case d < 0:
		return ""
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// CountOf is n and a word, with an s unless n is 1.
func CountOf(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

func (t *Terminal) Since(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return Span(max(0, t.Now().Sub(at).Truncate(time.Second)))
}

func Seconds(s *float64) string {
	if s == nil {
		return ""
	}
	return Span(time.Duration(*s * float64(time.Second)))
}

// Readable is Plain for text of several lines: tabs and line ends stay.
func Readable(s string) string { return words.ReplaceAllStringFunc(s, Plain) }

var words = regexp.MustCompile("[^\t\n]+")
