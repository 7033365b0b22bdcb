package azure

import (
	"context"
	"errors"
	"io"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

// uploadBlock and uploads bound the memory of one Write.
const (
	uploadBlock = 8 << 20
	uploads     = 2
)

// Write stores body as the blob name below location, replacing it. The blob appears
// when its last byte has arrived. Only compile caches of engines are written.
func (s *Source) Write(ctx context.Context, location, name string, body io.ReadSeeker, size int64) error {
	p, err := parse(location)
	if err != nil {
		return err
	}
	a, err := s.accessTo(p)
	if err != nil {
		return err
	}
	blob := name
	if p.prefix != "" {
		blob = p.prefix + "/" + name
	}
	_, err = a.client.NewBlockBlobClient(blob).UploadStream(ctx, httpsource.Exactly(body, size),
		&blockblob.UploadStreamOptions{BlockSize: uploadBlock, Concurrency: uploads})
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &source.Error{Kind: source.Broken, Source: p.String(), File: name, Detail: "is shorter than announced", Err: err}
	}
	if err != nil {
		return sdkError(ctx, p, a, name, err)
	}
	return nil
}
