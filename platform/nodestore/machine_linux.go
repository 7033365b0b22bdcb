package nodestore

import (
	"os"
	"path/filepath"
	"strings"
)

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func totalMemory() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return parseMeminfo(string(b))
}

// groupMemory is the tightest limit on the way up from our control group.
func groupMemory() int64 {
	least := int64(0)
	note := func(path string) {
		if b, err := os.ReadFile(path); err == nil {
			if n := parseLimit(string(b)); n > 0 && (least == 0 || n < least) {
				least = n
			}
		}
	}
	note("/sys/fs/cgroup/memory/memory.limit_in_bytes") // version 1
	own := ""
	if b, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		for line := range strings.Lines(string(b)) {
			if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
				own = filepath.Clean("/" + p)
			}
		}
	}
	for {
		note(filepath.Join("/sys/fs/cgroup", own, "memory.max"))
		if own == "" || own == "/" {
			return least
		}
		own = filepath.Dir(own)
	}
}
