package mount

import (
	"context"
	"errors"
)

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
