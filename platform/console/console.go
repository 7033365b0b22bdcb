// Package console serves the static files of the web console at /ui: its pages call the control API
// and the OpenAI API from the browser, to show the state and to try models out. The files hold no
// data of anyone's.
package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions/openai"
)

//go:embed assets
var assets embed.FS

// Prefix is what the paths of the console begin with.
const Prefix = "/ui"

// ServesPath reports whether a path is the console's.
func ServesPath(path string) bool { return path == Prefix || strings.HasPrefix(path, Prefix+"/") }

// pages are the first segments of the paths of pages. The script of the page reads the rest.
var pages = []string{"", "cold-starts", "models", "router", "playground", "socket"}

// policy lets a page load and ask this server alone, and run what it loads and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'"

// Console serves the files. Its methods may be called concurrently.
type Console struct {
	files func() *files
}

// files are the files as they are sent.
type files struct {
	tag    string // changes with every file and version
	index  *file
	assets map[string]*file // by path
}

type file struct {
	contentType   string
	plain, zipped []byte
}

// New makes a console of a program of this version; files are compressed at the first request.
func New(version string) *Console {
	return &Console{files: sync.OnceValue(func() *files { return loadFiles(assets, version) })}
}

// contentTypes are the types of the files that the console has.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".mjs":  "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

func loadFiles(from fs.FS, version string) *files {
	contents := map[string][]byte{}
	sum := sha256.New()
	err := fs.WalkDir(from, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(from, name)
		contents[strings.TrimPrefix(name, "assets/")] = b
		sum.Write([]byte(name + "\x00" + strconv.Itoa(len(b)) + "\x00"))
		sum.Write(b)
		return err
	})
	if err != nil {
		panic(err) // the files are part of the program
	}
	root := Prefix + "/" + hex.EncodeToString(sum.Sum(nil))[:16] + "/"
	sum.Write([]byte(version))
	f := &files{tag: hex.EncodeToString(sum.Sum(nil))[:16], assets: map[string]*file{}}
	for name, b := range contents {
		if name == "index.html" {
			b = []byte(strings.NewReplacer("{root}", root, "{tag}", f.tag, "{version}", html.EscapeString(version)).Replace(string(b)))
			f.index = newFile(name, b)
			continue
		}
		// The scripts import each other by relative paths, so one folder name for all of
		// them names their content.
		f.assets[root+name] = newFile(name, b)
	}
	return f
}

func newFile(name string, b []byte) *file {
	var zipped bytes.Buffer
	w, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(b)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err) // a buffer takes everything
	}
	return &file{contentType: contentTypes[path.Ext(name)], plain: b, zipped: zipped.Bytes()}
}

// Serve answers a request for a path of the console. It is a [httpserver.Handler].
func (c *Console) Serve(req *httpserver.Request, res *httpserver.Response) {
	res.Set("x-content-type-options", "nosniff")
	res.Set("referrer-policy", "no-referrer")
	res.Set("content-security-policy", policy)
	if req.Method != "GET" && req.Method != "HEAD" {
		e := openai.New(openai.MethodNotAllowed, "Use GET here.")
		e.Allow = "GET, HEAD"
		res.Refuse(e)
		return
	}
	if req.Path == Prefix {
		res.Status = 308
		res.Set("location", Prefix+"/")
		return
	}
	all := c.files()
	if f := all.assets[req.Path]; f != nil {
		res.Set("cache-control", "max-age=31536000, immutable")
		res.Set("cross-origin-resource-policy", "same-origin")
		f.send(req, res)
		return
	}
	tag := `W/"` + all.tag + `"`
	rest := strings.TrimPrefix(req.Path, Prefix+"/")
	first, _, _ := strings.Cut(rest, "/")
	found := slices.Contains(pages, first) && (first != "" || rest == "")
	res.Set("cache-control", "no-cache")
	res.Set("cross-origin-opener-policy", "same-origin")
	res.Set("x-frame-options", "DENY")
	switch {
	case !found:
		res.Status = 404 // the page says so
	case matchesTag(req.Header("If-None-Match"), all.tag):
		res.Set("etag", tag)
		res.Set("vary", "accept-encoding")
		res.Status = 304
		return
	default:
		res.Set("etag", tag)
	}
	all.index.send(req, res)
}

func (f *file) send(req *httpserver.Request, res *httpserver.Response) {
	res.Set("content-type", f.contentType)
	res.Set("vary", "accept-encoding")
	res.Body = f.plain
	if acceptsGzip(req.Header("Accept-Encoding")) {
		res.Set("content-encoding", "gzip")
		res.Body = f.zipped
	}
}

// matchesTag reports whether an If-None-Match has the tag, weak or strong.
func matchesTag(header, tag string) bool {
	for t := range strings.SplitSeq(header, ",") {
		if t = strings.TrimSpace(t); t == "*" || strings.Trim(strings.TrimPrefix(t, "W/"), `"`) == tag {
			return true
		}
	}
	return false
}

// acceptsGzip reports whether an Accept-Encoding lets the answer be compressed.
func acceptsGzip(header string) bool {
	for coding := range strings.SplitSeq(header, ",") {
		name, weight, _ := strings.Cut(strings.ReplaceAll(coding, " ", ""), ";")
		if strings.EqualFold(name, "gzip") {
			q, err := strconv.ParseFloat(strings.TrimPrefix(weight, "q="), 64)
			return weight == "" || err == nil && q > 0
		}
	}
	return false
}
