package forecast

import (
	"strings"
	"testing"
	"time"
)

// FuzzReadFile: a file is read entirely or not at all.
func FuzzReadFile(f *testing.F) {
	f.Add([]byte(`{"version":1,"history":{"version":1,"saved":"2026-01-01T00:00:00Z","functions":[]},"starts":{"t/x":{"recipe":"7","samples":[{"node":"n","tier":"REMOTE","total":5000000000,"phases":{"load":1}}]}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h := New()
		starts, err := ReadFile(strings.NewReader(string(b)), h, time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC))
		if err != nil && (starts != nil || h.Len() > 0) {
			t.Fatalf("%v, and yet %d functions and %d starts", err, h.Len(), len(starts))
		}
		for name, x := range starts {
			if len(x.Samples) > keepSamples || name.Name == "" {
				t.Fatalf("%v: %+v", name, x)
			}
		}
	})
}
