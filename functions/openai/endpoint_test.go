package openai

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

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

// TestSplicedAtTheBounds: a body with as many keys or parts as the gateway takes is taken
// with what the gateway adds to it; one more is not.
func TestSplicedAtTheBounds(t *testing.T) {
	var form strings.Builder
	for i := range maxParts {
		fmt.Fprintf(&form, "--b\r\nContent-Disposition: form-data; name=\"p%d\"\r\n\r\nen\r\n", i)
	}
	keys := `{"stream":true`
	for i := range MaxKeys - 1 {
		keys += fmt.Sprintf(`,"k%d":1`, i)
	}
	for path, c := range map[string]struct{ kind, body, added, more string }{
		"/v1/completions":          {"application/json", keys + "}", "stream_options", `{"k":1,`},
		"/v1/audio/transcriptions": {"multipart/form-data; boundary=b", form.String() + "--b--", "model", "--b\r\nContent-Disposition: form-data; name=\"more\"\r\n\r\nen\r\n-"},
	} {
		peek := func(body []byte) (Envelope, error) {
			if IsForm(path) {
				return PeekMultipartUnnamed(c.kind, body)
			}
			return PeekUnnamed(body)
		}
		env, err := peek([]byte(c.body))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		spliced := bytes.Join(env.Splice(nil, []byte(c.body), "m", true), nil)
		if got, err := PeekPublic(path, c.kind, spliced); err != nil || got.Model != "m" || !bytes.Contains(spliced, []byte(c.added)) {
			t.Errorf("%s: %v %+v", path, err, got)
		}
		if _, err := peek(spliced); err == nil {
			t.Errorf("%s: a client may send more than the bound", path)
		}
		if _, err := PeekPublic(path, c.kind, append([]byte(c.more), spliced[1:]...)); err == nil {
			t.Errorf("%s: more is taken than is added", path)
		}
	}
	if got := InferPath([]byte(strings.Replace(keys, "k0", "prompt", 1) + `,"model":"m","stream_options":{}}`)); got != "/v1/completions" {
		t.Errorf("/infer goes to %s", got)
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
