package compositions

import (
	"encoding/json/jsontext"
	"runtime"
	"strings"
	"testing"
)

// The parts of a message are joined without a copy of all text for each.
func TestManyParts(t *testing.T) {
	const n = 20_000
	raw := jsontext.Value("[" + strings.Repeat(`{"text":"0123456789abc"},`, n-1) + `{"text":"end"}]`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	text, ok := readContent(raw)
	runtime.ReadMemStats(&after)
	if !ok || len(text) != (n-1)*14+3 || !strings.HasSuffix(text, "\nend") {
		t.Fatalf("%v, %d bytes", ok, len(text))
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 100*uint64(len(raw)) {
		t.Errorf("%d bytes were allocated for %d", got, len(raw))
	}
}
