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

// SharedFolders are the folders of this node's disk that other nodes may read: those
// that models name as their source.
type SharedFolders struct {
	// Disk reads them.
	Disk loader.InPlace
	// Shared reports whether a folder, by its absolute path, is a model's, and which
	// files beside source.Allowed are staged of it. It is called for every range.
	Shared func(folder string) (also source.Globs, ok bool)
}

const (
	listPath = "/peers/folder"
	filePath = "/peers/file"
	maxList  = 16 << 20
)

type folderList struct {
	Files []folderFile `json:"files"`
}

type folderFile struct {
	Name    string `json:"name"`
	Size    int64  `json:"size"`
	Version string `json:"version"`
}

// folderError is an error on the wire. It names no more of the disk than the request
// did.
type folderError struct {
	Kind   source.Kind `json:"kind"`
	Detail string      `json:"what"`
	Fix    string      `json:"fix,omitempty"`
}

func (s *SharedFolders) writeError(w http.ResponseWriter, err error) {
	out := folderError{Kind: source.KindOf(err), Detail: "cannot be read there"}
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
		out.Detail, out.Fix = e.Detail, e.Fix
		if e.File != "" {
			out.Detail = e.File + " " + e.Detail
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(out)
}

func (s *SharedFolders) requestedFolder(w http.ResponseWriter, r *http.Request) (string, source.Globs, bool) {
	folder := r.URL.Query().Get("folder")
	if s != nil && filepath.IsAbs(folder) && filepath.Clean(folder) == folder {
		if also, ok := s.Shared(folder); ok {
			return folder, also, true
		}
	}
	s.writeError(w, &source.Error{Kind: source.NotFound, Detail: "is not a folder of a model there"})
	return "", nil, false
}

// serveList answers with the files of a folder that are staged, and no others.
func (s *SharedFolders) serveList(w http.ResponseWriter, r *http.Request) {
	folder, also, ok := s.requestedFolder(w, r)
	if !ok {
		return
	}
	location := "file://" + folder
	plan, err := s.Disk.Plan(r.Context(), location, also)
	if err == nil {
		plan.Files, _, err = source.Select(location, plan.Files, also)
	}
	if err != nil {
		s.writeError(w, err)
		return
	}
	out := folderList{Files: make([]folderFile, 0, len(plan.Files))}
	for _, file := range plan.Files {
		out.Files = append(out.Files, folderFile{file.Name, file.Size, file.Version})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}

// serveRange answers with a range of a file in one version. Each piece is sent only
// after the file was checked again: it is of that version, or the answer breaks off.
func (s *SharedFolders) serveRange(w http.ResponseWriter, r *http.Request) {
	folder, also, ok := s.requestedFolder(w, r)
	if !ok {
		return
	}
	name := r.URL.Query().Get("file")
	file := source.File{Name: name, Version: strings.Trim(r.Header.Get("If-Match"), `"`), Ref: filepath.Join(folder, filepath.FromSlash(name))}
	if err := source.CheckName(name); err != nil || !also.Includes(name) {
		s.writeError(w, &source.Error{Kind: source.Refused, Detail: "is not staged"})
		return
	}
	at, err := s.Disk.Open(file)
	if err != nil {
		s.writeError(w, err)
		return
	}
	defer at.Close()
	first, err := at.Stat()
	if err != nil {
		s.writeError(w, &source.Error{Kind: source.Broken, Detail: "cannot be read there"})
		return
	}
	off, n, ok := parseRange(r.Header.Get("Range"))
	if !ok || n > maxBlockRead || off+n > first.Size() {
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		return
	}
	same := func() bool {
		again, err := s.Disk.Open(file)
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
			s.writeError(w, &source.Error{Kind: source.Changed, Detail: "changed while it was read"})
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

// parseRange parses "bytes=FIRST-LAST".
func parseRange(s string) (off, n int64, ok bool) {
	var last int64
	if _, err := fmt.Sscanf(s, "bytes=%d-%d", &off, &last); err != nil || off < 0 || last < off || last == 1<<63-1 {
		return 0, 0, false
	}
	return off, last - off + 1, true
}

// PeerSource is a loader.Source of folders on other nodes' disks, by
// loader.PeerLocation.
type PeerSource struct{ node *Node }

func (n *Node) Source() *PeerSource { return &PeerSource{n} }

var _ loader.Source = (*PeerSource)(nil)

// findPeer returns the URL of the node that shares a location.
func (s *PeerSource) findPeer(location string) (at, folder string, err error) {
	id, folder, ok := loader.ParsePeerLocation(location)
	if !ok {
		return "", "", &source.Error{Kind: source.BadSource, Source: location, Detail: "does not name a node and a folder of it"}
	}
	for _, n := range s.node.o.Nodes() {
		if n.ID == id && n.URL != "" {
			return strings.TrimRight(n.URL, "/"), folder, nil
		}
	}
	return "", "", source.Fail(source.Unavailable, "the node "+id+" shares no folders now, or is not known here",
		"start it with --peer-addr").At(location, "")
}

// Plan lists a folder of another node. That node decides which files beside
// source.Allowed are staged.
func (s *PeerSource) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	at, folder, err := s.findPeer(location)
	if err != nil {
		return source.Plan{}, err
	}
	r, err := httpsource.Send(ctx, s.node.http, http.MethodGet, at+listPath+"?"+url.Values{"folder": {folder}}.Encode(), location, "", nil)
	if err != nil {
		return source.Plan{}, err
	}
	defer httpsource.Drain(r)
	if r.StatusCode != http.StatusOK {
		return source.Plan{}, s.responseError(r, location, "")
	}
	var list folderList
	if err := httpsource.Decode(r, maxList, location, json.Unmarshal, &list, "the listing is not what a node gives"); err != nil {
		return source.Plan{}, err
	}
	var plan source.Plan
	for _, f := range list.Files {
		if f.Version == "" || strings.ContainsAny(f.Version, "\"\r\n") {
			return source.Plan{}, &source.Error{Kind: source.Malformed, Source: location, File: f.Name, Detail: "has no version"}
		}
		plan.Files = append(plan.Files, source.File{Name: f.Name, Size: f.Size, Version: `"` + f.Version + `"`, Ref: location})
	}
	if len(plan.Files) == 0 {
		return source.Plan{}, &source.Error{Kind: source.NotFound, Source: location, Detail: "it holds no files of a model"}
	}
	return plan, nil
}

// Read returns a range of a file in the version of the plan.
func (s *PeerSource) Read(ctx context.Context, file source.File, offset, length int64) (io.ReadCloser, error) {
	at, folder, err := s.findPeer(file.Ref)
	if err != nil {
		return nil, err
	}
	body, _, err := httpsource.Range(ctx, s.node.http,
		httpsource.RangeRequest{URL: at + filePath + "?" + url.Values{"folder": {folder}, "file": {file.Name}}.Encode(),
			Source: file.Ref, File: file, Offset: offset, Length: length, ETag: file.Version,
			ResponseError: func(r *http.Response) error { return s.responseError(r, file.Ref, file.Name) }})
	return body, httpsource.GoneIsChanged(err)
}

// responseError returns a node's refusal, with its reason if it sent one.
func (s *PeerSource) responseError(r *http.Response, location, file string) error {
	e := httpsource.Status(r, location, file)
	var folderErr folderError
	if raw, err := io.ReadAll(io.LimitReader(r.Body, 64<<10)); err == nil && json.Unmarshal(raw, &folderErr) == nil && folderErr.Detail != "" {
		known := []source.Kind{source.NotFound, source.Missing, source.Changed, source.Refused, source.Denied, source.BadSource, source.Broken}
		if slices.Contains(known, folderErr.Kind) {
			e.Kind, e.Detail, e.Fix = folderErr.Kind, folderErr.Detail, folderErr.Fix
		}
	}
	return e
}
