package s3

import (
	"context"
	"io"
	"net/http"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

// Write stores body as the object name below location, replacing it. The object
// appears when its last byte has arrived. Only compile caches of engines are written.
func (s *Source) Write(ctx context.Context, location, name string, body io.ReadSeeker, size int64) error {
	p, err := parse(location)
	if err != nil {
		return err
	}
	begin, err := body.Seek(0, io.SeekCurrent)
	if err != nil {
		return &source.Error{Kind: source.Broken, Source: p.String(), File: name, Detail: "cannot be read", Err: err}
	}
	prepare := func(region string) (*http.Request, error) {
		if _, err := body.Seek(begin, io.SeekStart); err != nil {
			return nil, &source.Error{Kind: source.Broken, Source: p.String(), File: name, Detail: "cannot be read", Err: err}
		}
		req, err := p.NewUpload(ctx, http.MethodPut, s.address(p, p.Key(name), region).String(), name, body, size)
		if err == nil {
			// A bucket that refuses answers before the body is sent.
			req.Header.Set("Expect", "100-continue")
		}
		return req, err
	}
	r, err := s.send(p, prepare, func(req *http.Request) (*http.Response, error) { return p.Upload(s.http, req, name) })
	if err != nil {
		return err
	}
	defer httpsource.Drain(r)
	if r.StatusCode/100 != 2 {
		return s.responseError(r, p, name)
	}
	return nil
}
