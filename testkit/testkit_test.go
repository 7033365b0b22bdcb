package testkit

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a test whose failure is kept.
type failing struct {
	testing.TB
	said string
}

func (*failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	panic(f)
}

// TestEventually: it looks at once, looks again until the check holds, gives up after
// Timeout, and says what it last saw.
func TestEventually(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration // when the check holds
		said  string
	}{
		{"at once", 0, ""},
		{"later", 59 * time.Second, ""},
		{"too late", 61 * time.Second, "not within 1m0s: the answer; last seen: 1m0s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, began := &failing{TB: t}, time.Now()
			try := func(wait func()) (said string) {
				f.said, began = "", time.Now()
				defer func() {
					if r := recover(); r != nil && r != any(f) {
						panic(r)
					}
					said = f.said
				}()
				wait()
				return
			}
			seen := func() (bool, string) { d := time.Since(began); return d >= c.after, fmt.Sprint(d) }
			if got := try(func() { Eventually(f, "the answer", seen) }); got != c.said {
				t.Errorf("%s: %q, want %q", c.name, got, c.said)
			}
			got := try(func() { Eventually(f, "the answer", func() bool { ok, _ := seen(); return ok }) })
			if want := map[bool]string{true: "not within 1m0s: the answer"}[c.said != ""]; got != want {
				t.Errorf("%s: %q, want %q", c.name, got, want)
			}
			if took := time.Since(began); took < min(c.after, Timeout) || took > min(c.after, Timeout)+longestPause {
				t.Errorf("%s: given up after %v", c.name, took)
			}
		})
	}
}
