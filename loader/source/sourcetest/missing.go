package sourcetest

import (
	"os"
	"testing"
)

// Missing ends a test that wants what this machine has not: it is skipped, and
// where THAW_REQUIRE=all it fails.
func Missing(t testing.TB, reason ...any) {
	t.Helper()
	if os.Getenv("THAW_REQUIRE") == "all" {
		t.Fatal(append([]any{"THAW_REQUIRE=all, and this machine cannot:"}, reason...)...)
	}
	t.Skip(reason...)
}
