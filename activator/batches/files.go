package batches

import (
	"fmt"
	"strings"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/batches/store"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// file is a file as clients read it.
type file struct {
	ID            string  `json:"id"`
	Object        string  `json:"object"`
	Bytes         int64   `json:"bytes"`
	CreatedAt     int64   `json:"created_at"`
	ExpiresAt     int64   `json:"expires_at"`
	Filename      string  `json:"filename"`
	Purpose       string  `json:"purpose"`
	Status        string  `json:"status"`
	StatusDetails *string `json:"status_details"`
}

func showFile(f store.File) any {
	return file{ID: f.ID, Object: "file", Bytes: f.Bytes, CreatedAt: f.Created, ExpiresAt: f.Expires, Filename: f.Name, Purpose: f.Purpose,
		Status: "processed"}
}

// Bounds of what a team may have.
const (
	maxFiles   = 1000
	maxBatches = 100 // that have not ended
)

func (s *Server) createFile(id auth.Identity, req *httpserver.Request) (any, *openai.Error) {
	u, ok := req.Received.(*upload)
	if !ok {
		return nil, openai.New(openai.InternalError, "")
	}
	if n := len(s.store.Files(id.Team)); n >= maxFiles {
		return nil, openai.New(openai.RateLimitExceeded, fmt.Sprintf("The team has %d files, as many as one may; delete some.", n)).Final()
	}
	f, err := u.commit(store.File{ID: "file-" + openai.NewID(), Team: id.Team, Created: s.o.Now().Unix()})
	if err != nil {
		return nil, s.storeError(err, "file", "")
	}
	s.o.Log.Info("file uploaded", "id", f.ID, "team", f.Team, "bytes", f.Bytes, "lines", u.lines)
	return showFile(f), nil
}

func (s *Server) listFiles(id auth.Identity, req *httpserver.Request) (any, *openai.Error) {
	q, e := readListQuery(req.Query, 10_000, 10_000, "after", "limit", "order", "purpose")
	if e != nil {
		return nil, e
	}
	list := functions.Filter(s.store.Files(id.Team), func(f store.File) bool { return q.purpose == "" || f.Purpose == q.purpose })
	return paginate(q, list, func(f store.File) string { return f.ID }, showFile)
}

func (s *Server) getFile(id auth.Identity, name string) (any, *openai.Error) {
	f, err := s.store.File(id.Team, name)
	if err != nil {
		return nil, s.storeError(err, "file", name)
	}
	return showFile(f), nil
}

func (s *Server) deleteFile(id auth.Identity, name string) (any, *openai.Error) {
	if err := s.store.Delete(id.Team, name); err != nil {
		return nil, s.storeError(err, "file", name)
	}
	return struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Deleted bool   `json:"deleted"`
	}{strings.Clone(name), "file", true}, nil
}

func (s *Server) content(id auth.Identity, name string, res *httpserver.Response) *openai.Error {
	f, meta, err := s.store.Content(id.Team, name)
	if err != nil {
		return s.storeError(err, "file", name)
	}
	res.Stream, res.Length = f, meta.Bytes
	res.Set("content-type", "application/octet-stream")
	res.Set("cache-control", "no-store")
	res.Set("content-disposition", "attachment")
	res.Set("x-content-type-options", "nosniff")
	return nil
}
