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
	if err == nil {
		err = s.configError
	}
	if err != nil {
		return err
	}
	begin, err := body.Seek(0, io.SeekCurrent)
	if err != nil {
		return &source.Error{Kind: source.Broken, Source: p.String(), File: name, Detail: "cannot be read", Err: err}
	}
	for try := 0; ; try++ {
		region := s.regionOf(p.Name)
		req, err := p.NewUpload(ctx, http.MethodPut, s.address(p, p.Key(name), region).String(), name, body, size)
		if err != nil {
			return err
		}
		// A bucket that refuses answers before the body is sent.
		req.Header.Set("Expect", "100-continue")
		if err := s.sign(req, p, region); err != nil {
			return err
		}
		r, err := p.Upload(s.http, req, name)
		if err != nil {
			return err
		}
		if r.StatusCode >= 300 && r.StatusCode < 500 && try == 0 && s.noteRegion(p.Name, region, r) {
			httpsource.Drain(r)
			if _, err := body.Seek(begin, io.SeekStart); err != nil {
				return &source.Error{Kind: source.Broken, Source: p.String(), File: name, Detail: "cannot be read", Err: err}
			}
			continue
		}
		if r.StatusCode/100 == 2 {
			httpsource.Drain(r)
			return nil
		}
		err = s.responseError(r, p, name)
		httpsource.Drain(r)
		return err
	}
}
