package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
)

// site answers with pages by path, and with files of two bytes elsewhere; it notes what it is
// asked for.
type site struct {
	pages map[string]string
	mu    sync.Mutex
	asked []string
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	s.mu.Unlock()
	page, ok := s.pages[r.URL.Path]
	status, target, _ := strings.Cut(page, " ")
	switch {
	case status == "302":
		http.Redirect(w, r, target, http.StatusFound)
	case status == "503":
		w.WriteHeader(http.StatusServiceUnavailable)
	case status == "404":
		http.NotFound(w, r)
	case ok && len(status) == 64: // a digest
		fmt.Fprint(w, page)
	case strings.HasPrefix(page, "["):
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, page)
	case ok:
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, page)
	case !strings.Contains(path.Base(r.URL.Path), "."):
		http.NotFound(w, r)
	default:
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("Content-Length", "2")
	}
}

// links is a page of links.
func links(names ...string) string {
	var b strings.Builder
	for _, n := range names {
		fmt.Fprintf(&b, "<a href=%q>", n)
	}
	return b.String()
}

// TestPages: what is planned from the pages of a folder, and what is asked for.
func TestPages(t *testing.T) {
	for _, x := range []struct {
		name  string
		pages map[string]string
		want  string // files, or ! and a part of the error
		asked string // without HEAD
	}{
		{"a file and a folder that a page names twice", map[string]string{"/m/": links("a.json", "sub/", "./a.json", "sub/", "/m/a.json"), "/m/sub/": links("b.json")},
			"a.json sub/b.json", "/m/SHA256SUMS /m/ /m/sub/"},
		{"a folder that is elsewhere", map[string]string{"/m/": "302 /n/", "/n/": links("a.json", "/m/b.json", "/n/c.json")}, "a.json c.json", "/m/SHA256SUMS /m/ /n/"},
		{"every address is a page", map[string]string{"/m/SHA256SUMS": links("x"), "/m/": links("a.json")}, "a.json", "/m/SHA256SUMS /m/"},
		{"a list that is busy", map[string]string{"/m/SHA256SUMS": "503", "/m/": links("a.json")}, "!503", "/m/SHA256SUMS"},
		{"a list of files that are there", map[string]string{"/m/SHA256SUMS": strings.Repeat("a", 64) + "  a.json\n" + strings.Repeat("b", 64) + "  sub/b.json\n"},
			"a.json sub/b.json", "/m/SHA256SUMS"},
		{"a list of a file that is gone", map[string]string{"/m/SHA256SUMS": strings.Repeat("a", 64) + "  gone.json\n", "/m/gone.json": "404"},
			"!: gone.json: is in SHA256SUMS and not in the folder (upload it", "/m/SHA256SUMS"},
		{"a list of a file that is busy", map[string]string{"/m/SHA256SUMS": strings.Repeat("a", 64) + "  busy.json\n", "/m/busy.json": "503"},
			"!: busy.json: the server answered 503", "/m/SHA256SUMS"},
		{"a folder below that is busy", map[string]string{"/m/": links("a.json", "sub/"), "/m/sub/": "503"}, "!: sub: the server answered 503", "/m/SHA256SUMS /m/ /m/sub/"},
		{"a folder below that is gone", map[string]string{"/m/": links("a.json", "sub/")}, "!neither a SHA256SUMS nor a page", "/m/SHA256SUMS /m/ /m/sub/"},
		{"a name that cannot be used", map[string]string{"/m/": `[{"name":"a.json"},{"name":"b:c.json"},{"name":"d.json"}]`}, "a.json b:c.json d.json", "/m/SHA256SUMS /m/"},
		{"a file of the site and a folder of one name", map[string]string{"/m/": links("a.json", "a.json/"), "/m/a.json/": links("b.json")}, "a.json", "/m/SHA256SUMS /m/"},
	} {
		site := &site{pages: x.pages}
		s, at, check := serveCounted(t, site)
		plan, err := s.Plan(t.Context(), at+"/m", nil)
		check()
		got := strings.Join(source.Names(plan.Files), " ")
		if err != nil {
			got = "!" + err.Error()
		}
		if text, bad := strings.CutPrefix(x.want, "!"); bad != (err != nil) || !bad && got != x.want ||
			bad && (!strings.Contains(got, text) || !strings.Contains(got, at+"/m")) {
			t.Errorf("%s: %s, want %s", x.name, got, x.want)
		}
		if strings.Contains(x.want, "SHA256SUMS and") && source.KindOf(err) != source.Missing {
			t.Errorf("%s: %s", x.name, source.KindOf(err))
		}
		asked, heads := []string{}, map[string]int{}
		for _, line := range site.asked {
			if at, get := strings.CutPrefix(line, "GET "); get {
				asked = append(asked, at)
			} else {
				heads[line]++
			}
		}
		if strings.Join(asked, " ") != x.asked || slices.ContainsFunc(slices.Collect(maps.Values(heads)), func(n int) bool { return n > 1 }) {
			t.Errorf("%s: asked for %q, want %s; %v", x.name, asked, x.asked, heads)
		}
	}
}

// TestBoundsOfPages: folders are read to their bounds, in depth and in number, and no further;
// so are the files that pages list.
func TestBoundsOfPages(t *testing.T) {
	plan := func(pages map[string]string) (string, error) {
		s, at := serve(t, &site{pages: pages})
		plan, err := s.Plan(t.Context(), at+"/m", nil)
		return strings.Join(source.Names(plan.Files), " "), err
	}
	chain := map[string]string{}
	var want []string
	for depth := range maxDepth + 3 {
		below := strings.Repeat("d/", depth)
		chain["/m/"+below] = links("f.json", "d/")
		if depth <= maxDepth {
			want = append(want, below+"f.json")
		}
	}
	if got, err := plan(chain); err != nil || got != strings.Join(want, " ") {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	for _, n := range []int{maxFolders - 1, maxFolders} { // and the folder itself
		pages := map[string]string{}
		var all []string
		for i := range n {
			name := fmt.Sprintf("%d/", i)
			all = append(all, name)
			pages["/m/"+name] = links("f.json")
		}
		pages["/m/"] = links(all...)
		got, err := plan(pages)
		if ok := n < maxFolders; ok && (err != nil || strings.Count(got, "f.json") != n) ||
			!ok && (source.KindOf(err) != source.Refused || !strings.Contains(err.Error(), "100 folders")) {
			t.Errorf("%d folders: %v", n, err)
		}
	}
	for _, asJSON := range []bool{false, true} {
		for _, n := range []int{maxFiles, maxFiles + 1} {
			page := func(more ...string) string { // half of the files, which are not staged
				for i := range maxFiles / 2 {
					more = append(more, fmt.Sprintf("%d.x", i))
				}
				if !asJSON {
					return links(more...)
				}
				var list []map[string]any
				for _, name := range more {
					list = append(list, map[string]any{"name": name, "is_dir": strings.HasSuffix(name, "/")})
				}
				raw, _ := json.Marshal(list)
				return string(raw)
			}
			more := []string{"other.x"}
			got, err := plan(map[string]string{"/m/": page("d/"), "/m/d/": page(more[:n-maxFiles]...)})
			if ok := n == maxFiles; ok && (err != nil || strings.Count(got, ".x") != n) ||
				!ok && (source.KindOf(err) != source.Refused || !strings.Contains(err.Error(), "10000 files")) {
				t.Errorf("%d files, JSON %v: %v", n, asJSON, err)
			}
		}
	}
	// A page is not cut: beside its files it has links to sort by.
	sorts := strings.Repeat(`<a href="?sort">`, 20)
	for _, n := range []int{maxFiles, maxFiles + 1} {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("%d.x", i))
		}
		got, err := plan(map[string]string{"/m/": sorts + links(names...)})
		if ok := n == maxFiles; ok && (err != nil || strings.Count(got, ".x") != n) || !ok && source.KindOf(err) != source.Refused {
			t.Errorf("a page of %d files: %d, %v", n, strings.Count(got, ".x"), err)
		}
	}
}
