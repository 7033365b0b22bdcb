package gpu

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// holder is a process that holds memory of a GPU.
type holder struct {
	pid   int
	bytes functions.Bytes // 0 if the driver does not say
}

// maxHolders bounds the processes that a text names.
const maxHolders = 4

// Holders describes the processes that hold memory of a GPU and that no thaw started, the
// largest first; "" if there are none. Where the driver counts processes of another
// namespace than this process sees (a container), none is known.
func (f *Facts) Holders(index int) string {
	text, _ := f.foreign(index)
	return text
}

// foreign describes the processes of others on a GPU, and sums their memory.
func (f *Facts) foreign(index int) (text string, total functions.Bytes) {
	if f.d == nil || !hostProcesses() {
		return "", 0
	}
	list := slices.DeleteFunc(f.d.holders(index), func(h holder) bool { return startedByThaw(h.pid) })
	slices.SortFunc(list, func(a, b holder) int { return cmp.Compare(b.bytes, a.bytes) })
	var names []string
	for i, h := range list {
		total += h.bytes
		if i < maxHolders {
			names = append(names, fmt.Sprintf("process %d (%s) holds %s", h.pid, processName(h.pid), h.bytes.Human()))
		}
	}
	return strings.Join(names, ", "), total
}

// hostProcesses reports whether this process sees the processes of the whole machine.
func hostProcesses() bool {
	to, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && to == "pid:[4026531836]" // PROC_PID_INIT_INO
}

// startedByThaw reports whether a process descends from a supervisor, which marks all that
// it starts, or has ended.
func startedByThaw(pid int) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return os.IsNotExist(err) || bytes.HasPrefix(env, []byte("THAW_SUPERVISED=")) || bytes.Contains(env, []byte("\x00THAW_SUPERVISED="))
}

func processName(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return "unknown"
	}
	return functions.Clip(strings.TrimSpace(string(b)))
}
