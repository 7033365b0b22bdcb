package nodestore

import "testing"

// TestSourceVariable: a variable of a source is without the line end of a Secret and the quotes of
// an --env-file; nothing else of it is cut.
func TestSourceVariable(t *testing.T) {
	for given, want := range map[string]string{
		"": "", "k": "k", "key\n": "key", " key ": "key", `"key"`: "key", "'key'\r\n": "key", `"`: `"`, `"key`: `"key`, `a"b"`: `a"b"`, "AccountKey=a==;": "AccountKey=a==;",
	} {
		t.Setenv("THAW_TEST_VARIABLE", given)
		if got := sourceVariable("THAW_TEST_VARIABLE"); got != want {
			t.Errorf("%q: %q", given, got)
		}
	}
}

// TestSourcesReadCleanVariables: the sources of a node are given such variables.
func TestSourcesReadCleanVariables(t *testing.T) {
	t.Setenv("HF_ENDPOINT", "\"http://127.0.0.1:1\"\n")
	all, end := OpenSources()
	defer end()
	if _, err := all["hf"].Plan(t.Context(), "hf://o/r", nil); err == nil || err.Error() == "" {
		t.Error("the hub was reached")
	} else if got := err.Error(); got != "hf://o/r: cannot be reached: 127.0.0.1:1: dial: connect: connection refused (check the host's name and this machine's network)" {
		t.Error(got)
	}
}
