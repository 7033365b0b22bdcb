package nodeloader

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// podOf returns the UID of the pod that a process is in. text is its /proc/PID/cgroup, self
// is this process's own.
//
//	0::/kubepods/burstable/pod<uid>/<container>                                        version 2
//	0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/…    the same by systemd, - in uid is _
//	0::/../../../burstable/pod<uid>/<container>                                        seen from a cgroup namespace
//	4:memory:/kubepods/besteffort/pod<uid>/<container>                                 version 1, a line per hierarchy
//
// A pod may create groups of any name below its container's: so the first path element
// that names a pod counts, and all hierarchies must name the same pod. If kubelet itself
// runs in a pod, that pod's element comes first; it is also in our own path, and skipped.
func podOf(text, self string) (uid string, err error) {
	roots := map[string][]string{}
	for controllers, path := range groups(self) {
		roots[controllers] = kubepods(path)
	}
	for controllers, path := range groups(text) {
		root := roots[controllers]
		if len(path) < len(root) || !slices.Equal(path[:len(root)], root) {
			continue
		}
		got := ""
		before := ""
		for _, part := range path[len(root):] {
			if got = podPart(part, before); got != "" {
				break
			}
			before = part
		}
		switch {
		case got == "":
		case uid == "":
			uid = got
		case uid != got:
			return "", fmt.Errorf("its control groups name two pods, %s and %s", uid, got)
		}
	}
	if uid == "" {
		return "", errNoPod
	}
	return uid, nil
}

var errNoPod = errors.New("it is in no pod's control group")

// groups yields the paths of a /proc/PID/cgroup, split into elements, by their controllers.
func groups(text string) func(yield func(string, []string) bool) {
	return func(yield func(string, []string) bool) {
		for line := range strings.Lines(text) {
			f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
			if len(f) == 3 && strings.HasPrefix(f[2], "/") && !yield(f[1], strings.Split(f[2][1:], "/")) {
				return
			}
		}
	}
}

// kubepods returns the elements before the group of all pods in the path of a pod's group.
func kubepods(path []string) []string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == "kubepods" || strings.HasSuffix(path[i], "kubepods.slice") {
			return path[:i]
		}
	}
	return nil
}

// podPart returns the UID in a path element that names a pod, else ""; before is the
// preceding element.
func podPart(part, before string) string {
	if rest, ok := strings.CutPrefix(part, "pod"); ok && isUID(rest) {
		switch before {
		case "kubepods", "burstable", "besteffort", "..":
			return rest
		}
		return ""
	}
	slice, ok := strings.CutSuffix(part, ".slice")
	if !ok {
		return ""
	}
	name, uid, ok := strings.CutLast(slice, "-pod")
	uid = strings.ReplaceAll(uid, "_", "-")
	if !ok || !isUID(uid) || !strings.Contains(name, "kubepods") {
		return ""
	}
	return uid
}

// isUID reports whether s is the UID of a pod that the API server created. Static pods have
// other UIDs, and run no models.
func isUID(s string) bool { return uidPattern.MatchString(s) }

var uidPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
