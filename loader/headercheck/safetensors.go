package headercheck

import (
	"errors"
	"io"

	"github.com/thaw-dev/thaw/functions/safetensors"
	"github.com/thaw-dev/thaw/loader/source"
)

// HeaderEnd returns where the data of a safetensors file of size bytes begins, from
// its first 8 bytes.
func HeaderEnd(first [8]byte, size int64) (int64, error) {
	end, err := safetensors.HeaderEnd(first, size, safetensors.MaxHeader)
	return end, sourceError(err)
}

// Safetensors checks the header of a file of size bytes. Errors are *source.Error of
// kind Truncated (the file ends early), Corrupt, or Broken (r fails).
func Safetensors(r io.ReaderAt, size int64) error {
	_, _, err := safetensors.Read(r, size, safetensors.MaxHeader)
	return sourceError(err)
}

func sourceError(err error) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*safetensors.Error](err)
	switch {
	case !ok:
		return &source.Error{Kind: source.Broken, Detail: "cannot be read", Err: err}
	case e.Truncated:
		return source.Fail(source.Truncated, e.Reason, "")
	}
	return source.Fail(source.Corrupt, "not a valid safetensors file: "+e.Reason, "")
}

func readFull(r io.ReaderAt, p []byte) error {
	n, err := r.ReadAt(p, 0)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return &source.Error{Kind: source.Truncated, Detail: "the file is shorter than was listed"}
	}
	return &source.Error{Kind: source.Broken, Detail: "cannot be read", Err: err}
}
