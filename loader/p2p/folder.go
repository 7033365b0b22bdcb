package p2p

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

// Folders are what a node lends of its own disk as it lies there, beside
// checkpoints: the folders that models name as their source.
type Folders struct {
	// Disk reads them.
	Disk loader.InPlace
	// Lent reports whether a folder, by its absolute path, is one of a model, and
	// which files beside the list are staged of it. It is asked for every range.
	Lent func(folder string) (also source.Globs, ok bool)
}

const (
	listPath = "/peers/folder"
	filePath = "/peers/file"
	maxList  = 16 << 20
)

// listed is a folder on the wire.
type listed struct {
	Files []listedFile `json:"files"`
}

type listedFile struct {
	Name    string `json:"name"`
	Size    int64  `json:"size"`
	Version string `json:"version"`
}

// refusal is an error of a folder on the wire. It names no more of the disk than
// was asked for.
type refusal struct {
	Kind source.Kind `json:"kind"`
	What string      `json:"what"`
	Fix  string      `json:"fix,omitempty"`
}

func (f *Folders) refuse(w http.ResponseWriter, err error) {
	out := refusal{Kind: source.KindOf(err), What: "cannot be read there"}
	status := http.StatusInternalServerError
	switch out.Kind {
	case source.NotFound, source.Missing:
		status = http.StatusNotFound
	case source.Changed:
		status = http.StatusPreconditionFailed
	case source.Refused, source.Denied, source.BadSource:
		status = http.StatusForbidden
	}
	if e, ok := errors.AsType[*source.Error](err); ok {
		out.What, out.Fix = e.What, e.Fix
		if e.File != "" {
			out.What = e.File + " " + e.What
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(out)
}

// folder is the one a request names, if it is lent.
func (f *Folders) folder(w http.ResponseWriter, r *http.Request) (string, source.Globs, bool) {
	folder := r.URL.Query().Get("folder")
	if f != nil && filepath.IsAbs(folder) && filepath.Clean(folder) == folder {
		if also, ok := f.Lent(folder); ok {
			return folder, also, true
		}
	}
	f.refuse(w, &source.Error{Kind: source.NotFound, What: "is no folder of a model there"})
	return "", nil, false
}

// list answers with the files that are staged of a folder: no others are named.
func (f *Folders) list(w http.ResponseWriter, r *http.Request) {
	folder, also, ok := f.folder(w, r)
	if !ok {
		return
	}
	location := "file://" + folder
	plan, err := f.Disk.Plan(r.Context(), location, also)
	if err == nil {
		plan.Files, err = source.Select(location, plan.Files, also)
	}
	if err != nil {
		f.refuse(w, err)
		return
	}
	out := listed{Files: make([]listedFile, 0, len(plan.Files))}
	for _, file := range plan.Files {
		out.Files = append(out.Files, listedFile{file.Name, file.Size, file.Version})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}

// read answers with a range of a file in one version. What leaves was read
// before the file was looked at once more: it is of that version, or the answer
// breaks off.
func (f *Folders) read(w http.ResponseWriter, r *http.Request) {
	folder, also, ok := f.folder(w, r)
	if !ok {
		return
	}
	name := r.URL.Query().Get("file")
	file := source.File{Name: name, Version: strings.Trim(r.Header.Get("If-Match"), `"`), Ref: filepath.Join(folder, filepath.FromSlash(name))}
	if err := source.CheckName(name); err != nil || !also.Wants(name) {
		f.refuse(w, &source.Error{Kind: source.Refused, What: "is not staged"})
		return
	}
	at, err := f.Disk.Open(file)
	if err != nil {
		f.refuse(w, err)
		return
	}
	defer at.Close()
	first, err := at.Stat()
	if err != nil {
		f.refuse(w, &source.Error{Kind: source.Broken, What: "cannot be read there"})
		return
	}
	off, n, ok := span(r.Header.Get("Range"))
	if !ok || n > maxLoan || off+n > first.Size() {
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		return
	}
	same := func() bool {
		again, err := f.Disk.Open(file)
		if err != nil {
			return false
		}
		defer again.Close()
		fi, err := again.Stat()
		return err == nil && os.SameFile(first, fi)
	}
	body, buf := io.NewSectionReader(at, off, n), make([]byte, min(n, pieceSize))
	sent := false
	for left := n; left > 0; {
		b := buf[:min(left, pieceSize)]
		_, err := io.ReadFull(body, b)
		switch {
		case err == nil && same():
		case sent:
			panic(http.ErrAbortHandler)
		default:
			f.refuse(w, &source.Error{Kind: source.Changed, What: "changed while it was read"})
			return
		}
		if !sent {
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", off, off+n-1, first.Size()))
			w.Header().Set("ETag", `"`+file.Version+`"`)
			w.WriteHeader(http.StatusPartialContent)
			sent = true
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute))
		if _, err := w.Write(b); err != nil {
			return
		}
		left -= int64(len(b))
	}
}

const pieceSize = 1 << 20

// span reads the head of a range: bytes=FIRST-LAST.
func span(s string) (off, n int64, ok bool) {
	var last int64
	if _, err := fmt.Sscanf(s, "bytes=%d-%d", &off, &last); err != nil || off < 0 || last < off || last == 1<<63-1 {
		return 0, 0, false
	}
	return off, last - off + 1, true
}

// Borrowed is a loader.Source: folders of other nodes' disks, by locations as
// loader.Lent makes them.
type Borrowed struct{ c *Circle }

// Borrowed returns the source of what nodes of this circle lend.
func (c *Circle) Borrowed() *Borrowed { return &Borrowed{c} }

var _ loader.Source = (*Borrowed)(nil)

// node finds who lends a location now.
func (b *Borrowed) node(location string) (at, folder string, err error) {
	id, folder, ok := loader.Lender(location)
	if !ok {
		return "", "", &source.Error{Kind: source.BadSource, Source: location, What: "does not name a node and a folder of it"}
	}
	for _, n := range b.c.o.Nodes() {
		if n.ID == id && n.URL != "" {
			return strings.TrimRight(n.URL, "/"), folder, nil
		}
	}
	return "", "", &source.Error{Kind: source.Unavailable, Source: location, What: "the node " + id + " does not lend now, or is not known here", Fix: "start it, and let it lend: --peer-addr"}
}

func (b *Borrowed) get(ctx context.Context, path, at string, q url.Values) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at+path+"?"+q.Encode(), nil)
	if err != nil {
		return nil, &source.Error{Kind: source.BadSource, What: "cannot be asked for"}
	}
	req.Header.Set("Authorization", "Bearer "+b.c.o.Token)
	return req, nil
}

// Plan lists a folder of another node. The node that has the model files says
// which files beside the list are staged; also names no more than those.
func (b *Borrowed) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	at, folder, err := b.node(location)
	if err != nil {
		return source.Plan{}, err
	}
	req, err := b.get(ctx, listPath, at, url.Values{"folder": {folder}})
	if err != nil {
		return source.Plan{}, err
	}
	r, err := b.c.http.Do(req)
	if err != nil {
		return source.Plan{}, httpsource.Network(ctx, location, "", err)
	}
	defer httpsource.Drain(r)
	if r.StatusCode != http.StatusOK {
		return source.Plan{}, b.refused(r, location, "")
	}
	raw, err := httpsource.Small(r, maxList, location)
	if err != nil {
		return source.Plan{}, err
	}
	var list listed
	if json.Unmarshal(raw, &list) != nil {
		return source.Plan{}, &source.Error{Kind: source.Malformed, Source: location, What: "the listing is not what a node gives"}
	}
	var plan source.Plan
	for _, f := range list.Files {
		if f.Version == "" || strings.ContainsAny(f.Version, "\"\r\n") {
			return source.Plan{}, &source.Error{Kind: source.Malformed, Source: location, File: f.Name, What: "has no version"}
		}
		plan.Files = append(plan.Files, source.File{Name: f.Name, Size: f.Size, Version: `"` + f.Version + `"`, Ref: location})
	}
	if len(plan.Files) == 0 {
		return source.Plan{}, &source.Error{Kind: source.NotFound, Source: location, What: "there is nothing of a model in it"}
	}
	return plan, nil
}

// Read returns a range of a file in the version of the plan.
func (b *Borrowed) Read(ctx context.Context, file source.File, offset, length int64) (io.ReadCloser, error) {
	at, folder, err := b.node(file.Ref)
	if err != nil {
		return nil, err
	}
	req, err := b.get(ctx, filePath, at, url.Values{"folder": {folder}, "file": {file.Name}})
	if err != nil {
		return nil, err
	}
	body, _, err := httpsource.Range(b.c.http, req, httpsource.Ask{Source: file.Ref, File: file, Offset: offset, Length: length, ETag: file.Version,
		Refused: func(r *http.Response) error { return b.refused(r, file.Ref, file.Name) }})
	return body, httpsource.Listed(err)
}

// refused is a node's no, in its own words where it has some.
func (b *Borrowed) refused(r *http.Response, location, file string) error {
	e := httpsource.Status(r, location, file)
	if r.StatusCode == http.StatusUnauthorized {
		e.What, e.Fix = "the node does not take this one's join token", "--token-file: the server's DATA/join-token"
		return e
	}
	var said refusal
	if raw, err := io.ReadAll(io.LimitReader(r.Body, 64<<10)); err == nil && json.Unmarshal(raw, &said) == nil && said.What != "" {
		known := []source.Kind{source.NotFound, source.Missing, source.Changed, source.Refused, source.Denied, source.BadSource, source.Broken}
		if slices.Contains(known, said.Kind) {
			e.Kind, e.What, e.Fix = said.Kind, said.What, said.Fix
		}
	}
	return e
}
