package gcs

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

// Write stores body as the object name below location, replacing it. The object
// appears when its last byte has arrived. Only compile caches of engines are written,
// and only then is a token with the right to write requested.
func (s *Source) Write(ctx context.Context, location, name string, body io.ReadSeeker, size int64) error {
	p, err := parse(location)
	if err == nil {
		err = s.configError
	}
	if err != nil {
		return err
	}
	at := s.endpoint + "/upload/storage/v1/b/" + p.Name + "/o?" + url.Values{"uploadType": {"media"}, "name": {p.Key(name)}}.Encode()
	req, err := p.NewUpload(ctx, http.MethodPost, at, name, body, size)
	if err != nil {
		return err
	}
	if err := s.authorize(req, p, s.writes); err != nil {
		return err
	}
	r, err := p.Upload(s.http, req, name)
	if err != nil {
		return err
	}
	defer httpsource.Drain(r)
	if r.StatusCode/100 != 2 {
		return s.responseError(r, p, name)
	}
	return nil
}
