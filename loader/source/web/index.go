package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/thaw-dev/thaw/loader/source"
)

// parseSums reads the lines of sha256sum: a digest, a space, a space or an
// asterisk, a name.
func parseSums(text string) ([]source.File, error) {
	var files []source.File
	n := 0
	for line := range strings.SplitSeq(text, "\n") {
		n++
		line = strings.TrimSuffix(line, "\r")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		sum, name, ok := strings.Cut(line, " ")
		if !ok || len(sum) != 64 || strings.Trim(sum, "0123456789abcdefABCDEF") != "" || name == "" {
			return nil, fmt.Errorf("line %d is not a digest and a name", n)
		}
		if name[0] == ' ' || name[0] == '*' {
			name = name[1:]
		}
		name = strings.TrimPrefix(name, "./")
		if path.Base(name) == "SHA256SUMS" {
			continue
		}
		if files = append(files, source.File{Name: name, SHA256: strings.ToLower(sum)}); len(files) > maxFiles {
			return nil, fmt.Errorf("has more than %d lines", maxFiles)
		}
	}
	if files == nil {
		return nil, errors.New("is empty")
	}
	return files, nil
}

// maxLinks bounds a page, which has links beside those of its files.
const maxLinks = 2 * maxFiles

var link = regexp.MustCompile(`(?i)<a\s[^>]*?href\s*=\s*(?:"([^"]*)"|'([^']*)')`)

// parseIndex returns what a folder's page lists, folders with a slash at their
// end. page is the address the page came from.
func parseIndex(kind string, raw []byte, page *url.URL) ([]string, error) {
	if strings.HasPrefix(kind, "application/json") {
		return parseJSON(raw)
	}
	if !strings.HasPrefix(kind, "text/html") {
		return nil, fmt.Errorf("it is of type %.40q", kind)
	}
	base := *page
	if !strings.HasSuffix(base.Path, "/") {
		base.Path += "/"
	}
	links := link.FindAllStringSubmatch(string(raw), maxLinks+1)
	if len(links) > maxLinks {
		return nil, fmt.Errorf("it has more than %d links", maxLinks)
	}
	var names []string
	for _, m := range links {
		u, err := url.Parse(html.UnescapeString(m[1] + m[2]))
		if err != nil {
			continue
		}
		if u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			continue // columns to sort by
		}
		u = base.ResolveReference(u)
		name, below := strings.CutPrefix(u.Path, base.Path)
		if u.Host != base.Host || !below || name == "" || strings.Contains(strings.TrimSuffix(name, "/"), "/") {
			continue // the folder above, other sites
		}
		names = append(names, name)
	}
	return names, nil
}

// parseJSON reads the lists of nginx (autoindex_format json) and Caddy.
func parseJSON(raw []byte) ([]string, error) {
	var list []struct {
		Name  string `json:"name"`
		Type  string `json:"type"`
		IsDir bool   `json:"is_dir"`
	}
	if json.Unmarshal(raw, &list) != nil {
		return nil, errors.New("it is JSON of another shape")
	}
	var names []string
	for _, e := range list {
		name := strings.TrimSuffix(e.Name, "/")
		if name == "" || strings.Contains(name, "/") {
			continue
		}
		if e.IsDir || e.Type == "directory" {
			name += "/"
		}
		names = append(names, name)
	}
	return names, nil
}
