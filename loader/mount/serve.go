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
	"sync"
	"time"
)

// Endpoint serves the files over HTTP on a unix socket: GET and HEAD of /NAME, with or
// without a Range; a read of missing bytes waits. An error ends the connection before
// Content-Length is reached.
type Endpoint struct {
	path  string
	srv   *http.Server
	ended chan struct{}
	once  sync.Once
}

// Serve opens the socket at path with mode 0600. The caller closes the endpoint.
func Serve(path string, files []File, from Bytes, o Options) (*Endpoint, error) {
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		ln.Close()
		return nil, err
	}
	e := &Endpoint{path: path, ended: make(chan struct{}), srv: &http.Server{
		Handler: Handler(files, from, o), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(o.log().Handler(), slog.LevelDebug),
	}}
	go func() {
		defer close(e.ended)
		if err := e.srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			o.log().Warn("the endpoint of arriving files has ended", "socket", path, "err", err)
		}
	}()
	return e, nil
}

// Path of the socket.
func (e *Endpoint) Path() string { return e.path }

// Close ends the endpoint and its waiting reads. It may be called more than once.
func (e *Endpoint) Close() {
	e.once.Do(func() { e.srv.Close() })
	<-e.ended
}

// Handler serves the files.
func Handler(files []File, from Bytes, o Options) http.Handler {
	sizes := make(map[string]int64, len(files))
	for _, f := range files {
		sizes[f.Name] = f.Size
	}
	log := o.log()
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
		c := &content{ctx: r.Context(), from: from, name: name, size: size}
		http.ServeContent(w, r, "", time.Time{}, c)
		if c.err != nil && r.Context().Err() == nil {
			log.Warn("a reader of an arriving file gets an error", "file", name, "err", c.err)
		}
	})
}

// content is one file for one request.
type content struct {
	ctx  context.Context // of the request, whose life this has
	from Bytes
	name string
	size int64
	at   int64
	err  error
}

func (c *content) Read(b []byte) (int, error) {
	if c.at >= c.size {
		return 0, io.EOF
	}
	n, err := c.from.ReadAt(c.ctx, c.name, b[:min(int64(len(b)), c.size-c.at)], c.at)
	c.at += int64(n)
	if err != nil {
		c.err = err
	}
	return n, err
}

func (c *content) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += c.at
	case io.SeekEnd:
		off += c.size
	}
	if off < 0 {
		return 0, errors.New("before the beginning")
	}
	c.at = off
	return off, nil
}
