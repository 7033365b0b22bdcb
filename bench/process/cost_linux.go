package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// tick is the unit of utime and stime in /proc; Linux reports 100 per second to every
// program, whatever the kernel's own rate.
const tick = 10 * time.Millisecond

// CPU returns the CPU time that the processes have used so far, all threads, user and
// system. The unit is 10 ms: measure much longer rounds.
func CPU(pids ...int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		f, err := readStat(pid)
		if err != nil {
			return 0, err
		}
		for _, i := range []int{11, 12} {
			n, err := strconv.ParseInt(string(f[i]), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
			}
			sum += time.Duration(n) * tick
		}
	}
	return sum, nil
}

// readStat returns /proc/PID/stat after the name, which may contain spaces: field 0 is
// the state.
func readStat(pid int) ([][]byte, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return nil, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(f))
	}
	return f, nil
}

// RSS returns a process's resident memory in bytes.
func RSS(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(b)
	if len(f) < 2 {
		return 0, fmt.Errorf("/proc/%d/statm: %q", pid, b)
	}
	pages, err := strconv.ParseInt(string(f[1]), 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// PSS returns a process's private memory plus its share of the shared memory, in bytes.
func PSS(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		if f := bytes.Fields(line); len(f) == 3 && string(f[0]) == "Pss:" {
			n, err := strconv.ParseInt(string(f[1]), 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/smaps_rollup has no Pss", pid)
}

// Tree returns a process and its descendants.
func Tree(pid int) ([]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, d := range dirs {
		child, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		f, err := readStat(child)
		if err != nil { // it has ended
			continue
		}
		parent, err := strconv.Atoi(string(f[1]))
		if err != nil {
			continue
		}
		children[parent] = append(children[parent], child)
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all, nil
}
