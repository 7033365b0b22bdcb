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
	text, _, _ := f.readHolders(index)
	return text
}

// HeldBy is the memory of a GPU that the processes of a supervised id hold, on the GPU where
// they hold most, at the last List; 0 if it is not known.
func (f *Facts) HeldBy(id string) functions.Bytes {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held[id]
}

// readHolders describes the processes of others on a GPU, sums their memory, and that of
// supervised processes by id.
func (f *Facts) readHolders(index int) (text string, total functions.Bytes, ours map[string]functions.Bytes) {
	if f.d == nil || !hostProcesses() {
		return "", 0, nil
	}
	ours = map[string]functions.Bytes{}
	list := slices.DeleteFunc(f.d.holders(index), func(h holder) bool {
		id, supervised := supervisedAs(h.pid)
		if supervised {
			ours[id] += h.bytes
		}
		return supervised
	})
	slices.SortFunc(list, func(a, b holder) int { return cmp.Compare(b.bytes, a.bytes) })
	var names []string
	for i, h := range list {
		total += h.bytes
		if i < maxHolders {
			names = append(names, fmt.Sprintf("process %d (%s) holds %s", h.pid, processName(h.pid), h.bytes.Human()))
		}
	}
	return strings.Join(names, ", "), total, ours
}

// hostProcesses reports whether this process sees the processes of the whole machine.
func hostProcesses() bool {
	to, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && to == "pid:[4026531836]" // PROC_PID_INIT_INO
}

// supervisedAs returns the id under which a supervisor started a process or its ancestor,
// which marks all that it starts. A process that has ended counts as supervised, without
// an id.
func supervisedAs(pid int) (id string, supervised bool) {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if os.IsNotExist(err) {
		return "", true
	}
	for line := range bytes.SplitSeq(env, []byte{0}) {
		if id, ok := bytes.CutPrefix(line, []byte("THAW_SUPERVISED=")); ok {
			return string(id), true
		}
	}
	return "", false
}

func processName(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return "unknown"
	}
	return functions.Clip(strings.TrimSpace(string(b)))
}
