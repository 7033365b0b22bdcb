package chatstream

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

const answered = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\ndata: " +
	"{\"choices\":[{\"delta\":{\"content\":\"Ice \"}}]}\n\ndata: " +
	"{\"choices\":[{\"delta\":{\"content\":\"melts.\"},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{}}\n\ndata: " +
	"[DONE]\n\n"

const held = ": thaw state=staging percent=41 eta_s=12 position=3\n: thaw state=staging percent=50 eta_s=10 position=3\n: thaw " +
	"state=loading\n: other\ndata: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n"

func FuzzReadStream(f *testing.F) {
	f.Add(held + answered)
	f.Add(": thaw timeline\n: thaw\n:\ndata:\n\ndata: {\"error\":{}}\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		_ = readStream(strings.NewReader(text), func(fr streamFrame) error {
			if fr.waiting != nil {
				if s := kit.Plain(fr.waiting.text("m")); strings.ContainsAny(s, "\x1b\r\n") {
					t.Errorf("%q", s)
				}
			}
			if s := kit.Readable(fr.text); strings.ContainsAny(s, "\x1b\r\x00") {
				t.Errorf("%q", s)
			}
			return nil
		})
	})
}
