package huggingface

import (
	"net/url"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]repoLocation{
		"hf://org/repo":                 {"org", "repo", "main", ""},
		"hf://Qwen/Qwen2.5-0.5B/":       {"Qwen", "Qwen2.5-0.5B", "main", ""},
		"hf://org/repo@v1.0":            {"org", "repo", "v1.0", ""},
		"hf://org/repo@refs/pr/7":       {"org", "repo", "refs/pr/7", ""},
		"hf://org/repo@refs/pr/7/a":     {"org", "repo", "refs/pr/7", "a"},
		"hf://org/repo/a/b.gguf":        {"org", "repo", "main", "a/b.gguf"},
		"hf://org/repo@v1/a":            {"org", "repo", "v1", "a"},
		"hf://org/repo@feature%2Fx/sub": {"org", "repo", "feature/x", "sub"},
	} {
		got, err := parse(in)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
		if again, err := parse(got.String()); err != nil || again != got {
			t.Errorf("%s: written as %s, read as %+v, %v", in, got, again, err)
		}
	}
}

// Whatever is taken for a location stays within its repository's part of the
// hub's addresses, and within its folder of the view.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"hf://org/repo", "hf://org/repo@main", "hf://../x", "hf://a/b@../../c", "hf://a/b/%2e%2e/c", "hf://a/b@refs/pr/1", "hf://a/b?x", "hf://a/b@x/../y", "hf://a//b", "hf://a/b\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		p, err := parse(in)
		if err != nil {
			return
		}
		u, err := url.Parse("https://hub/api/models/" + p.org + "/" + p.repo + "/tree/" + url.PathEscape(p.rev) + "/" + httpsource.EscapePath(p.sub))
		if err != nil || u.Host != "hub" || u.RawQuery != "" || !strings.HasPrefix(u.JoinPath().Path, "/api/models/"+p.org+"/"+p.repo+"/tree/") {
			t.Errorf("%q became %+v, %v", in, p, err)
		}
		for part := range strings.SplitSeq(p.rev, "/") {
			if part == "" || part == ".." || part == "." {
				t.Errorf("%q: revision %q", in, p.rev)
			}
		}
	})
}
