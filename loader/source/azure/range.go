package azure

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

// serviceVersion is the x-ms-version of every request. The SDK's own is the newest,
// which emulators and older services refuse; the newest feature in use, the checksum of
// a range, is of 2019-02-02.
const serviceVersion = "2023-11-03"

// maxCRCRange is the longest range for which the service returns a checksum.
const maxCRCRange = 4 << 20

// crc64Table is of the polynomial of x-ms-content-crc64.
var crc64Table = crc64.MakeTable(0x9A6C9329AC4BC9B5)

// endpointSupport is what the service at one endpoint was seen to support.
type endpointSupport struct {
	noRangeChecksum atomic.Bool // it refuses x-ms-range-get-content-crc64
}

func (s *Source) supportOf(endpoint string) *endpointSupport {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.endpoints[endpoint]
	if e == nil {
		e = &endpointSupport{}
		s.endpoints[endpoint] = e
	}
	return e
}

// checksumKey marks the context of a request for a range with its checksum.
type checksumKey struct{}

// headerPolicy sets the headers that the SDK has no option for. It runs before the
// request is signed: a Shared Key signature covers every x-ms- header, and the headers
// of policy.WithHTTPHeader are set after it.
type headerPolicy struct{}

func (headerPolicy) Do(req *policy.Request) (*http.Response, error) {
	h := req.Raw().Header
	// The SDK stores it under this name, which is not the canonical one.
	h["x-ms-version"] = []string{serviceVersion}
	if req.Raw().Context().Value(checksumKey{}) != nil {
		h.Set("X-Ms-Range-Get-Content-Crc64", "true")
	}
	return req.Next()
}

func (s *Source) Read(ctx context.Context, f source.File, offset, length int64) (io.ReadCloser, error) {
	body, _, err := s.download(ctx, f, offset, length, false)
	return body, err
}

// ReadInto fills b with a range of a blob and compares it with the checksum of the
// range, where the service returns one.
func (s *Source) ReadInto(ctx context.Context, f source.File, offset int64, b []byte) error {
	body, sum, err := s.download(ctx, f, offset, int64(len(b)), len(b) <= maxCRCRange)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := httpsource.ReadFull(ctx, body, b, httpsource.RangeRequest{File: f, Offset: offset}); err != nil {
		return err
	}
	if len(sum) == 8 && binary.LittleEndian.Uint64(sum) != crc64.Checksum(b, crc64Table) {
		return &source.Error{Kind: source.Malformed, File: f.Name,
			Detail: fmt.Sprintf("the range at byte %d came with a checksum of other bytes", offset)}
	}
	return nil
}

// download returns a range of a blob and, if checksum is set and the service returns
// one, the range's checksum. A service that refuses the header of the checksum is asked
// again without it, and never again with it.
func (s *Source) download(ctx context.Context, f source.File, offset, length int64, checksum bool) (io.ReadCloser, []byte, error) {
	p, name, a, err := s.locateBlob(f)
	if err != nil {
		return nil, nil, err
	}
	checksum = checksum && !a.support.noRangeChecksum.Load()
	r, err := a.downloadRange(ctx, f, name, offset, length, checksum)
	if checksum && refusesHeader(err) {
		checksum = false
		if r, err = a.downloadRange(ctx, f, name, offset, length, false); !refusesHeader(err) {
			a.support.noRangeChecksum.Store(true)
		}
	}
	if err != nil {
		return nil, nil, httpsource.GoneIsChanged(sdkError(ctx, p, a, f.Name, err))
	}
	// Checked here, because the SDK accepts any range that comes.
	body, err := httpsource.ResponseBody(r,
		httpsource.RangeRequest{Source: p.String(), File: f, Offset: offset, Length: length, ETag: f.Version})
	if err != nil || !checksum {
		return body, nil, err
	}
	sum, err := base64.StdEncoding.DecodeString(r.Header.Get("X-Ms-Content-Crc64"))
	if err != nil {
		sum = nil
	}
	return body, sum, nil
}

// downloadRange sends one request for a range. Its error is the SDK's.
func (a *containerAccess) downloadRange(ctx context.Context, f source.File, name string, offset, length int64,
	checksum bool) (*http.Response, error) {
	if checksum {
		ctx = context.WithValue(ctx, checksumKey{}, true)
	}
	// Accept-Encoding is no part of a signature.
	ctx = policy.WithHTTPHeader(ctx, http.Header{"Accept-Encoding": {"identity"}})
	var r *http.Response
	etag := azcore.ETag(f.Version)
	_, err := a.client.NewBlobClient(name).DownloadStream(policy.WithCaptureResponse(ctx, &r), &blob.DownloadStreamOptions{
		Range:            blob.HTTPRange{Offset: offset, Count: length},
		AccessConditions: &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: &etag}},
	})
	return r, err
}

// refusesHeader reports whether err is the answer of a service that does not support
// a header of the request.
func refusesHeader(err error) bool {
	r, ok := errors.AsType[*azcore.ResponseError](err)
	return ok && unsupported(r.ErrorCode)
}
