package gcs

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"

	"github.com/thaw-dev/thaw/loader/source"
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
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at, io.NopCloser(httpsource.Exactly(body, size)))
	if err != nil {
		return &source.Error{Kind: source.BadSource, Source: p.String(), File: name, Detail: "is not a valid address"}
	}
	if req.ContentLength = size; size == 0 {
		req.Body = http.NoBody
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	if err := s.authorize(req, p, s.writes); err != nil {
		return err
	}
	r, err := s.http.Do(req)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &source.Error{Kind: source.Broken, Source: p.String(), File: name, Detail: "is shorter than announced", Err: err}
	}
	if err != nil {
		return httpsource.Network(ctx, p.String(), name, err)
	}
	defer httpsource.Drain(r)
	if r.StatusCode/100 != 2 {
		return s.responseError(r, p, name)
	}
	return nil
}
