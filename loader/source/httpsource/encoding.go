package httpsource

import (
	"fmt"
	"strings"

	"github.com/thaw-dev/thaw/loader/source"
)

// CheckEncoding returns an error for a file whose Content-Encoding, a list separated by
// commas, holds a compression. Everything else that uploads leave there (aws-chunked,
// binary, utf-8) does not change the bytes; sizes and digests decide about those.
func CheckEncoding(location, file, encodings string) error {
	for encoding := range strings.SplitSeq(encodings, ",") {
		switch strings.ToLower(strings.TrimSpace(encoding)) {
		case "gzip", "x-gzip", "compress", "x-compress", "deflate", "br", "zstd", "dcb", "dcz",
			"bzip2", "x-bzip2", "xz", "lzma", "lz4", "snappy":
			return &source.Error{Kind: source.Corrupt, Source: location, File: file,
				Detail: fmt.Sprintf("is stored with Content-Encoding %.20q", strings.TrimSpace(encoding)), Fix: "upload it uncompressed"}
		}
	}
	return nil
}
