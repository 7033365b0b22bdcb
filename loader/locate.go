package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/source"
)

// Locate returns the scheme and the canonical location of a model file's source: a
// path becomes file:///abs, a repository's page of the hub becomes hf://…, a blob
// folder's https form gets the scheme az. base is the folder of the model file. It
// touches no file and no network.
func Locate(src, base string) (scheme, location string, err error) {
	bad := func(what, fix string) (string, string, error) {
		// src itself is not repeated where it may hold a credential.
		return "", "", &source.Error{Kind: source.BadSource, Detail: "source " + what, Fix: fix}
	}
	switch {
	case src == "":
		return bad("is empty",
			"a path, file:///abs, az://ACCOUNT/CONTAINER/PREFIX, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, hf://ORG/REPO[@REV] or https://…")
	case strings.ContainsFunc(src, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return bad("holds a control character", "")
	}
	if strings.HasPrefix(src, "file:") {
		u, err := url.Parse(src)
		if err != nil || u.Host != "" && u.Host != "localhost" || !filepath.IsAbs(u.Path) || u.RawQuery != "" || u.Fragment != "" {
			return bad(fmt.Sprintf("%q is not a file URL", src), "file:///absolute/folder")
		}
		if node, _, ok := ParsePeerLocation(base); ok {
			return PeerScheme, PeerLocation(node, filepath.Clean(u.Path)), nil
		}
		return "file", "file://" + filepath.Clean(u.Path), nil
	}
	if scheme, remaining, ok := strings.Cut(src, "://"); ok {
		if strings.ContainsAny(remaining, "?#") {
			return bad("holds a query: credentials do not belong in a model file",
				"leave the query out; for a SAS set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_SAS_TOKEN")
		}
		strict := scheme == "http" || scheme == "hf"
		if message, hint := functions.CheckSource(src); message != "" && (strict || strings.HasPrefix(hint, "did you mean ")) {
			return bad(message, hint)
		}
		host, _, _ := strings.Cut(remaining, "/")
		if strings.Contains(host, "@") {
			return bad("holds a user name", "leave it out; credentials come from the environment")
		}
		if scheme == "" || strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyz0123456789+-.") != "" {
			return bad(fmt.Sprintf("has the scheme %q", scheme), "schemes are written in small letters")
		}
		location := scheme + "://" + strings.TrimRight(remaining, "/")
		if scheme == "https" {
			scheme, location = locateHTTPS(host, location)
		}
		return scheme, location, nil
	}
	if message, hint := functions.CheckSource(src); message != "" {
		return bad(message, hint)
	}
	if strings.HasPrefix(src, "~") {
		return bad(fmt.Sprintf("%q begins with ~, which only shells know", src), "write the whole path")
	}
	p := filepath.FromSlash(src)
	if node, folder, ok := ParsePeerLocation(base); ok {
		if !filepath.IsAbs(p) {
			p = filepath.Join(folder, p)
		}
		return PeerScheme, PeerLocation(node, filepath.Clean(p)), nil
	}
	if !filepath.IsAbs(p) {
		if !filepath.IsAbs(base) {
			return bad(fmt.Sprintf("%q is relative and the folder of its model file is not known here", src),
				"write the whole path, or deploy from the file")
		}
		p = filepath.Join(base, p)
	}
	return "file", "file://" + filepath.Clean(p), nil
}

// PeerScheme is the scheme of folders on another node's disk.
const PeerScheme = "peer"

// PeerLocation returns the location of a folder on another node's disk. As base of
// Locate it is the folder of a model file there: sources that are paths then belong to
// that node too.
func PeerLocation(node, folder string) string {
	return PeerScheme + "://" + node + (&url.URL{Path: filepath.ToSlash(folder)}).EscapedPath()
}

func ParsePeerLocation(location string) (node, folder string, ok bool) {
	remaining, ok := strings.CutPrefix(location, PeerScheme+"://")
	if !ok {
		return "", "", false
	}
	node, _, _ = strings.Cut(remaining, "/")
	folder, err := url.PathUnescape(remaining[len(node):])
	folder = filepath.FromSlash(folder)
	return node, folder, err == nil && node != "" && filepath.IsAbs(folder) && filepath.Clean(folder) == folder
}

// locateHTTPS returns the scheme of an https location: that of the cloud whose host it
// names, or https.
func locateHTTPS(host, location string) (scheme, where string) {
	switch {
	case strings.Contains(host, ".blob.core.") || strings.HasSuffix(host, ".blob.storage.azure.net"):
		return "az", location
	case strings.Contains(host, ".dfs.core."): // the same account by its other protocol
		return "az", strings.Replace(location, ".dfs.core.", ".blob.core.", 1)
	case host == "huggingface.co" || host == "hf.co":
		part := strings.Split(strings.TrimPrefix(location, "https://"+host+"/"), "/")
		if len(part) == 2 {
			return "hf", "hf://" + part[0] + "/" + part[1]
		}
		if len(part) >= 4 && (part[2] == "tree" || part[2] == "blob" || part[2] == "resolve") { // addresses of the hub's pages and files
			return "hf", "hf://" + part[0] + "/" + part[1] + "@" + strings.Join(part[3:], "/")
		}
	}
	return "https", location
}

// Local returns the folder that src names on this machine; ok is false for a source
// that is staged.
func Local(src, base string) (folder string, ok bool, err error) {
	scheme, location, err := Locate(src, base)
	if err != nil || scheme != "file" {
		return "", false, err
	}
	return strings.TrimPrefix(location, "file://"), true, nil
}

// MissingFolders returns the sources of a model and its adapters that name a folder or file of this
// machine which is not there.
func MissingFolders(m *functions.Model) (missing []functions.Problem) {
	base := m.Dir
	if _, _, peer := ParsePeerLocation(base); !peer && base != "" {
		base, _ = filepath.Abs(base)
	}
	look := func(path, src string) {
		if folder, local, err := Local(src, base); err != nil || !local {
			return
		} else if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
			hint := "a relative source counts from its file; a repository of Hugging Face is hf://ORG/REPO"
			if near := source.NearestPath(folder); near != "" {
				hint = fmt.Sprintf("there is %q, whose name is written otherwise", near)
			} else if strings.Contains(src, `\`) {
				hint = "a backslash is part of the name here: leave it out"
			}
			missing = append(missing, functions.Problem{Path: path, Message: folder + " is not on this machine, and a start fails until it is there",
				Hint: hint})
		}
	}
	look("spec.source", m.Spec.Source)
	for i, a := range m.Spec.Adapters {
		look(fmt.Sprintf("spec.adapters[%d].source", i), a.Source)
	}
	return missing
}
