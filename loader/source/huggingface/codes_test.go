package huggingface

import (
	"net/http"
	"strings"
	"testing"
)

// TestRefusalsNameAWayOut: a repository that the hub has disabled is not called private, and too
// many requests without a token ask for one.
func TestRefusalsNameAWayOut(t *testing.T) {
	s := New(Options{Getenv: func(name string) string { return map[string]string{"HF_ENDPOINT": "https://mirror.example"}[name] }})
	for _, c := range []struct {
		status      int
		code, token string
		want        string
	}{
		{403, "DisabledRepo", "t", "the hub has disabled the repository"},
		{429, "", "", "set HF_TOKEN"},
		{409, "", "t", "check HF_ENDPOINT"},
		{403, "", "", "no reason of the hub's"},
		{407, "", "", "the proxy asks for a login"},
		{502, "", "t", "or what is between: try again later"},
		{404, "", "", "HF_ENDPOINT names https://mirror.example"},
	} {
		r := &http.Response{StatusCode: c.status, Header: http.Header{"X-Error-Code": {c.code}}, Body: http.NoBody}
		if err := s.responseError(r, repoLocation{org: "o", repo: "r"}, "", c.token); !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d %s: %v\nlacks %s", c.status, c.code, err, c.want)
		}
	}
}
