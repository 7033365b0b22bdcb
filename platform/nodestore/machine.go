package nodestore

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// Machine is an identity of this host as file systems see it: two processes
// with the same one can open the same paths. The boot id tells hosts of one
// name apart, the name tells containers of one host apart.
func Machine() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	if boot := bootID(); boot != "" {
		return host + "/" + boot
	}
	return host
}

// Share of the machine's memory that engines may take together where nobody
// says how much.
const autoMemory = 0.8

// Memory is the host memory that replicas may reserve together: 80 % of what
// this process may use, by the machine's total and its control group's limit.
func Memory() (functions.Bytes, error) {
	total, err := totalMemory()
	if err != nil {
		return 0, err
	}
	if limit := groupMemory(); limit > 0 && limit < total {
		total = limit
	}
	return functions.Bytes(autoMemory * float64(total)), nil
}

// parseMeminfo finds MemTotal in the text of /proc/meminfo, in bytes.
func parseMeminfo(text string) (int64, error) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "MemTotal:")
		if !ok {
			continue
		}
		f := strings.Fields(rest)
		if len(f) != 2 || f[1] != "kB" {
			break
		}
		n, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil || n <= 0 || n > 1<<50 {
			break
		}
		return n << 10, nil
	}
	return 0, errors.New("no MemTotal in /proc/meminfo")
}

// parseLimit reads a control group's memory.max: 0 where there is no limit.
func parseLimit(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n <= 0 || n >= 1<<60 {
		return 0
	}
	return n
}
