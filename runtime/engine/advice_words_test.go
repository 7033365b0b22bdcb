package engine

import (
	"strings"
	"testing"
)

// TestAdviceWords: causes whose words do not tell what helps, from public reports; those words are kept.
func TestAdviceWords(t *testing.T) {
	for log, want := range map[string][2]string{
		"OSError: [Errno 28] No space left on device: '/home/me/.cache/x'":                        {"'/home/me/.cache/x'", "df -h"},
		"RuntimeError: can't start new thread":                                                    {"can't start new thread", "TasksMax"},
		"OpenBLAS blas_thread_init: pthread_create failed for thread 31 of 64\nbye":               {"thread 31 of 64", "--pids-limit"},
		"  what():  Resource temporarily unavailable":                                             {"Resource temporarily", "ulimit -u"},
		"DefaultCPUAllocator: can't allocate memory: you tried to allocate 117 bytes":             {"117 bytes", "resources.memory"},
		"llama_model_load: error loading model: mmap failed: No such device":                      {"mmap failed: No such device", "--no-mmap"},
		"the input device is not a TTY":                                                           {"not a TTY", "without -t and -i"},
		"error: Failed to spawn: `vllm`\n  Caused by: No such file (os error 2)":                  {"`vllm`", "its whole path"},
		"CondaError: Run 'conda init' before 'conda activate'":                                    {"conda activate", "conda run"},
		"Caused by:\n  Runtime compute cap 75 is not compatible with compile time compute cap 80": {"cap 75", "install the build"},
		"locale.Error: unsupported locale setting":                                                {"unsupported locale", "C.UTF-8"},
		"socket.gaierror: [Errno -2] Name or service not known":                                   {"Errno -2", "127.0.0.1"},
		"RuntimeError: operator torchvision::nms does not exist":                                  {"torchvision::nms", "install it anew"},
		"TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'":                     {"for |: 'type'", "newer Python"},
		"Error: listen tcp 127.0.0.1:11434: bind: address already in use":                         {"port taken: ", "OLLAMA_HOST: 127.0.0.1:{port}"},
		"Unable to find image 'e:9' locally\n" +
			"docker: Error response from daemon: manifest for e:9 not found: manifest unknown.": {"manifest for e:9", "docker pull"},
		"docker: Error response from daemon: pull access denied for e, repository does not exist": {"denied for e", "docker login"},
		"sh: 0: Illegal option -o pipefail": {"-o pipefail", "bash in place of sh"},
		"I1130 00:00:00.0 1 server.cc:1] failed to find x, going on\n" +
			"E1130 00:00:00.0 1 model_lifecycle.cc:642] failed to load 'm': unable to find backend library\n" +
			"error: creating server: Internal - failed to load all models": {"it wrote: failed to load 'm': unable to find backend", ""},
	} {
		if got := RootCause(log, "exit code 1"); !strings.Contains(got, want[0]) || !strings.Contains(got, want[1]) {
			t.Errorf("%s\nlacks %q", got, want)
		}
	}
}
