package cli

import (
	"bufio"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// memory of this machine, and what of it programs may still take.
func memory() (total, free functions.Bytes, err error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		n, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			continue
		}
		switch words[0] {
		case "MemTotal:":
			total = functions.Bytes(n) << 10
		case "MemAvailable:":
			free = functions.Bytes(n) << 10
		}
	}
	if total == 0 {
		return 0, 0, errors.Join(errors.New("/proc/meminfo says nothing"), lines.Err())
	}
	return total, free, nil
}
