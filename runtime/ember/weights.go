package ember

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/thaw-dev/thaw/runtime/ember/safetensors"
)

const unixScheme = "unix:"

// weights opens files at WeightsFrom; nil if that is not set. The server waits for
// bytes that have not arrived, so only ctx bounds a request; end closes its connections.
func (o *Options) weights(ctx context.Context) (from safetensors.From, end func()) {
	if o.WeightsFrom == "" {
		return nil, func() {}
	}
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(o.WeightsFrom, unixScheme))
		},
		DisableCompression: true, ReadBufferSize: 256 << 10,
	}
	client := &http.Client{Transport: t}
	return func(name string) (io.ReadCloser, int64, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://weights/"+url.PathEscape(name), nil)
		if err != nil {
			return nil, 0, err
		}
		res, err := client.Do(req)
		if err != nil {
			return nil, 0, fmt.Errorf("%s from %s: %w", name, o.WeightsFrom, err)
		}
		if res.StatusCode != http.StatusOK {
			res.Body.Close()
			return nil, 0, fmt.Errorf("%s from %s: %s", name, o.WeightsFrom, res.Status)
		}
		return res.Body, res.ContentLength, nil
	}, t.CloseIdleConnections
}
