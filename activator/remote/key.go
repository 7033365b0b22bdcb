package remote

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// maxKey bounds a key in bytes.
const maxKey = 4 << 10

// keyFile is what is known of a file that holds a key.
type keyFile struct {
	path string
	info fs.FileInfo // of the last read; nil: there was none
}

// errNoFile is a path of another kind: opening a pipe waits for its writer.
var errNoFile = errors.New("is no regular file")

// read reads the key again if the file has changed; fresh is false if it has not.
func (f *keyFile) read() (key, reason string, fresh bool) {
	info, err := os.Stat(f.path)
	if err == nil && f.info != nil && os.SameFile(info, f.info) && info.Size() == f.info.Size() && info.ModTime().Equal(f.info.ModTime()) {
		return "", "", false
	}
	var raw []byte
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errNoFile
	default:
		raw, err = readBounded(f.path)
	}
	if err != nil {
		f.info = nil
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = errors.New("does not exist")
		case errors.Is(err, fs.ErrPermission):
			err = errors.New("may not be read by this server")
		case errors.Is(err, errNoFile):
		default:
			err = errors.New("cannot be read")
		}
		return "", fmt.Sprintf("the key file %s %v", f.path, err), true
	}
	f.info = info
	key, reason = cleanKey(raw, "the key file "+f.path)
	return key, reason, true
}

// readBounded reads a file that is not much larger than a key.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxKey+2))
}

// cleanKey checks a key that came from the place named. The reason, if any, is why there is
// none; it never has a part of the key.
func cleanKey(raw []byte, place string) (key, reason string) {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0:
		return "", place + " is empty or not set"
	case len(raw) > maxKey:
		return "", place + " holds more than a key"
	}
	if bytes.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", place + " holds characters that no key has"
	}
	return string(raw), ""
}
