package mount

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// Endpoint serves the files over HTTP on a unix socket: GET and HEAD of /NAME, with or
// without a Range; a read of missing bytes waits. An error ends the connection before
// Content-Length is reached.
type Endpoint struct {
	srv   *http.Server
	ended chan struct{}
}

// Serve opens the socket at path with mode 0600. The caller closes the endpoint.
func Serve(path string, files []File, from Bytes, log *slog.Logger) (*Endpoint, error) {
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		ln.Close()
		return nil, err
	}
	e := &Endpoint{ended: make(chan struct{}), srv: &http.Server{
		Handler: serveFiles(files, from, log), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	go func() {
		defer close(e.ended)
		if err := e.srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("the endpoint of arriving files has ended", "socket", path, "err", err)
		}
	}()
	return e, nil
}

// Close ends the endpoint and its waiting reads. It may be called more than once.
func (e *Endpoint) Close() {
	e.srv.Close()
	<-e.ended
}

func serveFiles(files []File, from Bytes, log *slog.Logger) http.Handler {
	sizes := make(map[string]int64, len(files))
	for _, f := range files {
		sizes[f.Name] = f.Size
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		size, ok := sizes[name]
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "GET or HEAD", http.StatusMethodNotAllowed)
			return
		case !ok:
			http.Error(w, "no such file", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		c := &content{ctx: r.Context(), from: from, name: name}
		http.ServeContent(w, r, "", time.Time{}, io.NewSectionReader(c, 0, size))
		if c.err != nil && r.Context().Err() == nil {
			log.Warn("a reader of an arriving file gets an error", "file", name, "err", c.err)
		}
	})
}

type content struct {
	ctx  context.Context // of the request, whose life this has
	from Bytes
	name string
	err  error // the last one of from
}

func (c *content) ReadAt(b []byte, off int64) (int, error) {
	n, err := c.from.ReadAt(c.ctx, c.name, b, off)
	if err != nil {
		c.err = err
	}
	return n, err
}

// File is one file of a tree; Name is slash-separated and below the folder.
type File struct {
	Name string
	Size int64
}

// Bytes is the content of the files. ReadAt is safe for concurrent use; it fills b
// from off, which lies within the file, and waits for missing bytes until ctx ends.
// Fewer bytes come with an error.
type Bytes interface {
	ReadAt(ctx context.Context, name string, b []byte, off int64) (int, error)
}

// ErrUnavailable means that this machine cannot mount; it is wrapped with the reason.
var ErrUnavailable = errors.New("FUSE is not available")
