package openai

import "testing"

func TestInferPath(t *testing.T) {
	for body, want := range map[string]string{
		`{"messages":[]}`:              "/v1/chat/completions",
		`{"messages":null}`:            "/v1/chat/completions",
		`{"prompt":"a"}`:               "/v1/completions",
		`{"prompt":"a","Messages":[]}`: "/v1/completions",
		`{`:                            "/v1/chat/completions",
	} {
		if got := InferPath([]byte(body)); got != want {
			t.Errorf("%s: %s", body, got)
		}
	}
}

// TestNewEngineID: an engine's id is new each time, and shows the gateway's id where that
// can be one of ours.
func TestNewEngineID(t *testing.T) {
	ours := NewID()
	a, b := NewEngineID(ours), NewEngineID(ours)
	if a == b || len(a) != 49 || a[:33] != ours+"-" {
		t.Errorf("%s and %s of %s", a, b, ours)
	}
	for _, other := range []string{"", "evil-id", ours[:31], ours + "0", "G" + ours[1:], a} {
		if got := NewEngineID(other); len(got) != 32 || got == NewEngineID(other) {
			t.Errorf("%q: %s", other, got)
		}
	}
}

// TestPeekPublic: each endpoint's body is read in its one form.
func TestPeekPublic(t *testing.T) {
	const form = "--b\r\nContent-Disposition: form-data; name=\"language\"\r\n\r\nen\r\n--b--"
	for _, c := range []struct {
		path, kind, body string
		ok               bool
	}{
		{"/v1/completions", "application/json", `{"prompt":"a"}`, true},
		{"/v1/completions", "multipart/form-data; boundary=b", form, false},
		{"/v1/completions", "", `{"prompt":"a","n":100000}`, false},
		{"/v1/audio/transcriptions", "multipart/form-data; boundary=b", form, true},
		{"/v1/audio/transcriptions", "application/json", `{"prompt":"a"}`, false},
	} {
		if _, err := PeekPublic(c.path, c.kind, []byte(c.body)); (err == nil) != c.ok {
			t.Errorf("%s %s: %v", c.path, c.body, err)
		}
	}
}
