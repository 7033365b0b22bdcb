package mount

import (
	"context"
	"errors"
	"log/slog"
)

// File is one file of a tree; Name is slash-separated and below the folder.
type File struct {
	Name string
	Size int64
}

// Bytes are what the files of a tree hold. ReadAt is called concurrently; it
// fills b from off, which lies within the file, and waits for bytes that are
// not here until ctx ends. Fewer bytes than asked for come with an error.
type Bytes interface {
	ReadAt(ctx context.Context, name string, b []byte, off int64) (int, error)
}

// ErrUnavailable says that nothing can be mounted here, and is wrapped with the
// reason.
var ErrUnavailable = errors.New("files cannot be shown while they arrive")

// Options of a tree.
type Options struct {
	// Log may be nil. A read that fails is told once per file.
	Log *slog.Logger
}

func (o Options) log() *slog.Logger {
	if o.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Log
}
