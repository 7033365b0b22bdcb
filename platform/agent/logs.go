package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/supervisor"
	"github.com/thaw-dev/thaw/runtime/tail"
)

// maxTail bounds the part of a log that is served before it is followed.
const maxTail = 1 << 20

// logs serves the end of an engine's log: ?tail=LINES (200); ?follow=true goes on
// until the engine ends.
func (h *Handler) logs(id string, req *httpserver.Request, res *httpserver.Response) {
	q, err := url.ParseQuery(req.Query)
	if err != nil {
		setError(res, 400, "invalid_value", "the query cannot be read")
		return
	}
	lines := 200
	if v := q.Get("tail"); v != "" {
		if lines, err = strconv.Atoi(v); err != nil || lines < 0 {
			setError(res, 400, "invalid_value", "tail is a number of lines")
			return
		}
	}
	log, err := h.agent.Logs(req.Context(), id, lines, q.Get("follow") == "true")
	if err != nil {
		setError(res, 404, "log_not_found", err.Error())
		return
	}
	res.Set("Content-Type", "text/plain; charset=utf-8")
	res.Stream, res.Length = log, -1
}

// Logs opens the log of a replica at its last lines; with follow it goes on until ctx or
// the replica ends. The log of a replica that has ended is there as long as it is kept. The error
// is functions.ErrNotFound where there is none.
func (a *Agent) Logs(ctx context.Context, id string, lines int, follow bool) (io.ReadCloser, error) {
	r := a.replicaByID(id)
	path := ""
	if r != nil {
		path = r.LogPath()
	} else if filepath.Base(id) == id && !strings.HasPrefix(id, ".") && len(id) <= 128 {
		path = supervisor.LogPath(a.supervisorDir(), id)
	}
	f, err := os.Open(path)
	switch {
	case err == nil:
	case r != nil && path == "" && r.Status().State.Over():
		return nil, fmt.Errorf("%w: no engine was started for it", functions.ErrNotFound)
	case r != nil && path == "":
		return nil, fmt.Errorf("%w: no engine has been started for it yet", functions.ErrNotFound)
	case r == nil && (path == "" || errors.Is(err, fs.ErrNotExist)):
		return nil, fmt.Errorf("%w: no engine was started for it on this node, or its log is no longer kept", functions.ErrNotFound)
	default:
		return nil, fmt.Errorf("%w: %w", functions.ErrNotFound, err)
	}
	start, err := lastLinesOffset(f, lines)
	if err == nil {
		_, err = f.Seek(start, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("replica %s: %w", id, err)
	}
	if !follow || r == nil {
		return f, nil
	}
	return tail.New(tail.Options{Path: func() string { return path }, File: f, Ended: r.done, Stop: ctx.Done()}), nil
}

// lastLinesOffset is the offset of the last lines of f, at most maxTail before its end.
func lastLinesOffset(f *os.File, lines int) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	from := max(0, st.Size()-maxTail)
	b := make([]byte, st.Size()-from)
	if _, err := f.ReadAt(b, from); err != nil && err != io.EOF {
		return 0, err
	}
	end := len(b)
	if end > 0 && b[end-1] == '\n' {
		end--
	}
	if lines == 0 {
		return st.Size(), nil
	}
	for range lines {
		i := bytes.LastIndexByte(b[:end], '\n')
		if i < 0 {
			return from, nil
		}
		end = i
	}
	return from + int64(end) + 1, nil
}
