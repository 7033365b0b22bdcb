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

// TestAdviceOnShares: a cause that asks for another share of the GPU names the key of the model file;
// a wrong flag and the host's memory do not.
func TestAdviceOnShares(t *testing.T) {
	for cause, want := range map[string]bool{
		"RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.2":           true,
		"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`":               true,
		"bad args in the model file: unrecognized arguments: --mem-fraction-static 0.5":                               false,
		"bad args in the model file: unrecognized arguments: --gpu_memory_utilization":                                false,
		"out of memory: Available memory on node 0 is less than desired: decrease `--gpu-memory-utilization`, on CPU": false,
	} {
		if got := strings.Contains(advise(cause), "(resources.gpuMemory in the model file sets that share"); got != want {
			t.Errorf("%s: %s", cause, advise(cause))
		}
	}
}
