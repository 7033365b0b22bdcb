package sourcetest

import (
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
)

// RunEncodings checks that a source refuses a file for a compression alone: open makes a
// source with one file of the given Content-Encoding, intact, and returns its location.
func RunEncodings(t *testing.T, body []byte, open func(t *testing.T, encoding string) (s Source, location string)) {
	for _, tc := range []struct {
		encoding string
		kind     source.Kind
	}{
		{"aws-chunked", ""}, {"binary", ""}, {"none", ""}, {"utf-8", ""}, {"UTF-8", ""}, {"identity", ""}, {"aws-chunked,identity", ""}, {"8bit", ""},
		{"gzip", source.Corrupt}, {"GZip", source.Corrupt}, {"aws-chunked, gzip", source.Corrupt}, {"br", source.Corrupt}, {"zstd,aws-chunked", source.Corrupt}, {"x-gzip", source.Corrupt}, {"deflate", source.Corrupt},
	} {
		t.Run(tc.encoding, func(t *testing.T) {
			s, location := open(t, tc.encoding)
			plan, err := s.Plan(t.Context(), location, nil)
			if err == nil {
				var got []byte
				f := plan.Files[0]
				if got, err = readBody(t.Context(), s, f, 0, f.Size); err == nil && string(got) != string(body) {
					t.Errorf("read %q", got)
				}
			}
			if source.KindOf(err) != tc.kind {
				t.Errorf("error %v", err)
			}
		})
	}
}
