package hostinfo

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// ReadMemory reads the machine's memory. The error is set where nothing is known.
func ReadMemory() (Memory, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Memory{}, err
	}
	m := parseMeminfo(string(b))
	if m.Total == 0 {
		return Memory{}, errors.New("no MemTotal in /proc/meminfo")
	}
	return m, nil
}

// GroupLimit is the tightest memory limit in bytes on the way up from this process's
// control group; 0 where there is none.
func GroupLimit() int64 {
	minimum := int64(0)
	read := func(path string) {
		if b, err := os.ReadFile(path); err == nil {
			if n := parseLimit(string(b)); n > 0 && (minimum == 0 || n < minimum) {
				minimum = n
			}
		}
	}
	read("/sys/fs/cgroup/memory/memory.limit_in_bytes") // version 1
	group, v1 := "", ""
	if b, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		for line := range strings.Lines(string(b)) {
			if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
				group = filepath.Clean("/" + p)
			}
			if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && f[1] == "memory" {
				v1 = filepath.Clean("/" + f[2])
			}
		}
	}
	for ; v1 != "" && v1 != "/"; v1 = filepath.Dir(v1) { // of a container these lie at the root
		read(filepath.Join("/sys/fs/cgroup/memory", v1, "memory.limit_in_bytes"))
	}
	for {
		read(filepath.Join("/sys/fs/cgroup", group, "memory.max"))
		if group == "" || group == "/" {
			return minimum
		}
		group = filepath.Dir(group)
	}
}

// BootID identifies this boot of the machine; "" where that is not known.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
