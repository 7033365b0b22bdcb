package headercheck

import (
	"bytes"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/loader/source"
)

// maxPointer is the size below which a file may be a pointer; Git LFS writes no larger ones.
const maxPointer = 1024

// pointerBeginnings are those of every version of Git LFS.
var pointerBeginnings = []string{"version https://git-lfs.github.com/spec/", "version https://hawser.github.com/spec/", "version http://git-media.io/v/"}

// mediaTypes are files that no engine loads: a clone that left them out is a whole model.
var mediaTypes = []string{".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".pdf", ".mp3", ".mp4", ".wav", ".webm", ".md"}

// Pointer returns an error if a file is what Git LFS leaves in place of a large one. Its
// first maxPointer bytes are enough.
func Pointer(raw []byte) error {
	if len(raw) < maxPointer &&
		slices.ContainsFunc(pointerBeginnings, func(begin string) bool { return bytes.HasPrefix(raw, []byte(begin)) }) {
		return &source.Error{Kind: source.Missing, Detail: "is a Git LFS pointer: the file was not downloaded", Fix: "git lfs pull"}
	}
	return nil
}

// checkPointer is Pointer for a file that an engine may load.
func checkPointer(name string, r io.ReaderAt, size int64) error {
	if size >= maxPointer || size == 0 || slices.Contains(mediaTypes, strings.ToLower(path.Ext(name))) {
		return nil
	}
	raw := make([]byte, size)
	if err := readFull(r, raw); err != nil {
		return err
	}
	return Pointer(raw)
}
