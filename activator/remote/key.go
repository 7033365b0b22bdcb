package remote

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
)

// assignment begins a line of a file of variables, such as OPENAI_API_KEY=….
var assignment = regexp.MustCompile(`^[A-Z][A-Z0-9]*_[A-Z0-9_]*=.`)

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
			err = errors.New("does not exist: write the key into it; it is read when it changes")
		case errors.Is(err, fs.ErrPermission):
			err = errors.New("may not be read by this server: chown it to the user of thaw, or chmod g+r")
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
	const alone = " (the key alone, without a name, quotes or Bearer)"
	raw = bytes.TrimSpace(bytes.TrimPrefix(raw, []byte("\ufeff")))
	switch {
	case len(raw) == 0:
		return "", place + " is empty or not set (it is read when thaw starts, a file also when it changes)"
	case len(raw) > maxKey:
		return "", place + " holds more than a key" + alone
	case bytes.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "", place + " holds characters that no key has, such as blanks" + alone
	case bytes.ContainsAny(raw, "\"'{}") || assignment.Match(raw):
		return "", place + " holds more than a key: quotes, a name or JSON" + alone
	}
	return string(raw), ""
}
