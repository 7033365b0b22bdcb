package engine

import (
	"strings"
	"testing"
)

// TestAdviceOnFiles: a config.json that is missing is advised on, as each engine says it; another
// file of that ending is not.
func TestAdviceOnFiles(t *testing.T) {
	for cause, want := range map[string]bool{
		"open /data/m/config.json: no such file or directory":                                                    true,
		"OSError: /data/m does not appear to have a file named config.json. Checkout 'https://huggingface.co/m'": true,
		"FileNotFoundError: [Errno 2] No such file or directory: '/data/m/config.json'":                          true,
		"open /data/m/generation_config.json: no such file or directory":                                         false,
		"open /data/m/tokenizer.json: no such file or directory":                                                 false,
	} {
		if got := strings.Contains(advise(cause), "copy config.json and the tokenizer beside the weights"); got != want {
			t.Errorf("%s: %t", cause, got)
		}
	}
}
