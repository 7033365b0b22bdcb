// Package hostinfo reads this machine's total and available memory, the free space of a disk and
// the boot id, and this process's limits: its control group's memory and the number of open files.
package hostinfo

import (
	"strconv"
	"strings"
)

// Memory is the machine's memory in bytes; 0 where a value is not known.
type Memory struct {
	Total     int64 // MemTotal
	Available int64 // MemAvailable: what programs may still allocate without swapping
}

// maxMemory is the largest plausible value of a line, in bytes.
const maxMemory = 1 << 50

// parseMeminfo reads the text of Linux's /proc/meminfo (see proc_meminfo(5)). A line
// that is malformed or implausible leaves its value 0.
func parseMeminfo(text string) (m Memory) {
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		var to *int64
		switch name {
		case "MemTotal":
			to = &m.Total
		case "MemAvailable":
			to = &m.Available
		default:
			continue
		}
		f := strings.Fields(rest)
		if len(f) != 2 || f[1] != "kB" {
			continue
		}
		if n, err := strconv.ParseInt(f[0], 10, 64); err == nil && n > 0 && n <= maxMemory>>10 {
			*to = n << 10
		}
	}
	return m
}

// parseLimit reads a control group's memory.max: 0 where there is no limit.
func parseLimit(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n <= 0 || n >= 1<<60 {
		return 0
	}
	return n
}
