package pods

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/runtime/forkserver"
	"github.com/thaw-dev/thaw/runtime/peercred"
	"github.com/thaw-dev/thaw/testkit"
)

// TestEngine: the child is what the pod's process is, in all that the kernel tells,
// and an engine as if it were executed: the shim's child, with its three descriptors.
func TestEngine(t *testing.T) {
	l := newLab(t, nil)
	parent := l.ready(0)
	o, s := l.engine(capacityCase{Name: "pod a", Umask: 0o027, Args: []string{fmt.Sprint(parent)}})
	if s.Argv[0] != l.host.o.Program || s.Env["A"] != "b" || s.Env["NODE"] != "" || s.Cwd == "/" || s.Host != "pod-a" {
		t.Errorf("the engine is not as it was asked for: %+v", s)
	}
	if o.PID != s.PID || s.PPID != 1 || s.PGID != s.PID || s.SID != s.PID {
		t.Errorf("the shim knows process %d; it is %d of %d, group %d, session %d", o.PID, s.PID, s.PPID, s.PGID, s.SID)
	}
	own, got := o.Status, parseStatus([]byte(s.Status))
	for _, k := range comparedStatus {
		if own[k] != got[k] || own[k] == "" {
			t.Errorf("%s is %q, and the shim's %q", k, got[k], own[k])
		}
	}
	// That it compares something: the room is not what this test is.
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	mine := parseStatus(b)
	for _, k := range []string{"Uid", "Gid", "Groups", "Umask", "CapBnd", "CapPrm", "NoNewPrivs", "Seccomp", "Seccomp_filters"} {
		if mine[k] == got[k] {
			t.Errorf("%s is %q in and out of the pod", k, got[k])
		}
	}
	limits, err := parseLimits(s.Limits)
	if err != nil || limits[unix.RLIMIT_NOFILE] != (unix.Rlimit{Cur: 1000, Max: 1000}) || limits[unix.RLIMIT_CORE].Max != 0 {
		t.Errorf("limits: %v\n%s", err, s.Limits)
	}
	if s.OOM != "321" || s.Nice != 3 || s.Dumpable != 1 {
		t.Errorf("oom_score_adj %s, nice %d, dumpable %d", s.OOM, s.Nice, s.Dumpable)
	}
	if len(s.FDs) != 3 || s.FDs["0"] != os.DevNull || !strings.HasPrefix(s.FDs["1"], "pipe:") || s.FDs["1"] != s.FDs["2"] {
		t.Errorf("it has %v open", s.FDs)
	}
	// Both filters, which give errors of their own.
	if s.Sethostname != -41 || s.Sync != -42 {
		t.Errorf("sethostname %d, sync %d", s.Sethostname, s.Sync)
	}
}

// TestForkCannotEscapePod: what a pod's engine could try to reach the interpreter, or to be more
// than its pod is.
func TestForkCannotEscapePod(t *testing.T) {
	l := newLab(t, nil)
	parent := l.ready(0)
	_, s := l.engine(capacityCase{Args: []string{fmt.Sprint(parent)}})
	if slices.Contains(s.PIDs, parent) || len(s.PIDs) > 3 {
		t.Errorf("it sees processes %v", s.PIDs)
	}
	if s.Parent != "ESRCH" || s.Mem != "ENOENT" || s.Ptrace != -int(syscall.ESRCH) || s.Up != "ENOENT" {
		t.Errorf("the interpreter: signal %s, memory %s, trace %d, by its first process %s", s.Parent, s.Mem, s.Ptrace, s.Up)
	}
	if s.Setuid != "EPERM" || s.Mount != -int(syscall.EPERM) {
		t.Errorf("setuid %s, mount %d", s.Setuid, s.Mount)
	}
	// The file of the interpreter is the node's: it can be read, and not written.
	if s.Exe != "EACCES" && s.Exe != "ETXTBSY" && s.Exe != "EROFS" {
		t.Errorf("its program can be written: %s", s.Exe)
	}
	host, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"pid", "mnt", "net", "ipc", "uts"} {
		own, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		if s.NS[ns] == own {
			t.Errorf("it is in the node's %s namespace", ns)
		}
	}
	if s.NS["user"] != host {
		t.Errorf("users: %s", s.NS["user"])
	}
	if len(s.Shared) > 0 {
		t.Errorf("it shares memory: %v", s.Shared)
	}
	if key := keyring(t); s.Keyring == key && key > 0 {
		t.Errorf("it has the interpreter's keyring %d", key)
	}
}

// keyring is the number of this session's.
func keyring(t *testing.T) int {
	id, _, e := unix.Syscall(unix.SYS_KEYCTL, 0, ^uintptr(2), 0)
	if e != 0 {
		t.Logf("no keyring here: %v", e)
		return 0
	}
	return int(int32(id))
}

// TestForkSharesNoEarlierState: an engine finds nothing of one before it.
func TestForkSharesNoEarlierState(t *testing.T) {
	l := newLab(t, nil)
	for i := range 3 {
		if _, s := l.engine(capacityCase{Name: fmt.Sprint("pod", i), Args: []string{"0", "a secret of pod", fmt.Sprint(i)}}); s.Earlier {
			t.Fatalf("engine %d finds what one before it left: %+v", i, s)
		}
	}
	// The interpreter was never told: it reads its owner alone.
	pid := l.ready(0)
	if found, of := inMemory(t, pid, "a secret of pod"); found || of == 0 {
		t.Errorf("of %d bytes of the interpreter, found %v", of, found)
	}
}

// inMemory looks for a text in all that a process has of its own.
func inMemory(t *testing.T, pid int, text string) (found bool, of int) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n != 3 || !strings.HasPrefix(mode, "rw") {
			continue
		}
		b := make([]byte, to-from)
		n, _ := mem.ReadAt(b, from)
		of += n
		found = found || strings.Contains(string(b[:n]), text)
	}
	return found, of
}

// TestRefused: a process that is not confined as thaw renders pods is refused before
// anything is forked, and told why.
func TestRefused(t *testing.T) {
	l := newLab(t, nil)
	for _, x := range []struct {
		name     string
		capacity capacityCase
		why      string
	}{
		{"root", capacityCase{Root: true}, "root's"},
		{"may gain privileges", capacityCase{GainsPrivileges: true}, "allowPrivilegeEscalation"},
		{"no profile", capacityCase{Open: true}, "no seccomp profile"},
		{"a capability", capacityCase{Cap: true}, "capabilities"},
		{"on the node itself", capacityCase{Outside: true}, "namespace"},
		{"not the first process", capacityCase{Second: true}, "not the first process"},
	} {
		t.Run(x.name, func(t *testing.T) {
			x.capacity.Name, x.capacity.Do = x.name, "facts"
			o := l.pod(x.capacity)
			if o.Facts != nil || !strings.Contains(o.Err, x.why) {
				t.Errorf("%+v", o)
			}
		})
	}
	if f, err := l.facts(); err != nil || f.Forks != 0 {
		t.Errorf("%d forks, %v", f.Forks, err)
	}
	// A process that is in no pod's control group.
	conn, err := net.Dial("unix", forkserver.HostSocket(l.store))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b := make([]byte, 1000)
	n, err := conn.Read(b)
	if err != nil || !strings.Contains(string(b[:n]), "not a pod") {
		t.Errorf("%v %s", err, b[:n])
	}
}

func (l *lab) facts() (forkserver.Facts, error) {
	l.host.mu.Lock()
	p := l.host.parent
	l.host.mu.Unlock()
	return p.readFacts()
}

// TestForgedMessages: what a request says does not matter to who it is for. Another pod's
// process, named in it, is not entered; and what is no request ends the child that
// read it, which is the pod's, and nothing else.
func TestForgedMessages(t *testing.T) {
	l := newLab(t, nil)
	other, _ := l.begin(capacityCase{Name: "other", Do: "say", Args: []string{"x"}, Socket: l.silent()})
	before := l.ready(0)
	lines := []string{
		fmt.Sprintf(`{"op":"fork","argv":["x"],"env":[],"dir":"/","pod":%d,"pid":%d,"uid":0,"cgroup":"/"}`, other.Process.Pid, other.Process.Pid),
		`{"op":"fork","argv":["x"],"env":[],"dir":"/"}`, // and no descriptors
		`{"op":"exit"}`, `[]`, `{`, "\x00\xff", strings.Repeat("[", 100000), `{"op":"fork","argv":"x"}`,
	}
	o := l.pod(capacityCase{Do: "say", Args: lines})
	if len(o.Errs) != len(lines) {
		t.Errorf("%+v", o)
	}
	for i, reply := range o.Errs {
		if !strings.Contains(reply, `"error"`) || strings.Contains(reply, `"pid"`) {
			t.Errorf("%.80q: %q", lines[i], reply)
		}
	}
	if now := l.ready(0); now != before {
		t.Errorf("the interpreter is another: %d, was %d", now, before)
	}
	if _, s := l.engine(capacityCase{Name: "after"}); s.Host != "after" {
		t.Errorf("%+v", s)
	}
}

// silent is a socket without an answer.
func (l *lab) silent() string {
	l.t.Helper()
	path := filepath.Join(filepath.Dir(l.store), "silent")
	ln, err := net.Listen("unix", path)
	if err != nil {
		l.t.Fatal(err)
	}
	os.Chmod(path, 0o666)
	l.t.Cleanup(func() { ln.Close() })
	return path
}

// TestMany: requests of a pod, and of all, are bounded; others have their share.
func TestMany(t *testing.T) {
	l := newLab(t, func(o *Options) { o.PerPod, o.PerNode, o.Within = 3, 5, time.Hour })
	o := l.pod(capacityCase{Name: "many", Do: "facts", Times: 8})
	if o.Facts == nil || len(o.Errs) != 5 || !strings.Contains(o.Errs[0], "3 requests of a pod") {
		t.Errorf("%+v", o)
	}
	if o := l.pod(capacityCase{Name: "other", Do: "facts"}); o.Facts == nil {
		t.Errorf("%+v", o)
	}
	l.pod(capacityCase{Name: "third", Do: "facts"})
	if o := l.pod(capacityCase{Name: "fourth", Do: "facts"}); o.Facts != nil || !strings.Contains(o.Err, "5 requests in") {
		t.Errorf("%+v", o)
	}
	if f, err := l.facts(); err != nil || f.Forks != 5 {
		t.Errorf("%d forks, %v", f.Forks, err)
	}
}

// TestClientGone: a process that has hung up and ended is gone by the time it is looked
// at, even if another process has its id.
func TestClientGone(t *testing.T) {
	if err := checkPrivileges(); err != nil {
		testkit.Missing(t, err)
	}
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	far, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	conn, err := ln.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p, err := dialingProcess(conn)
	if err != nil || p.PID != os.Getpid() || !p.Alive() {
		t.Fatalf("%+v %v", p, err)
	}
	p.Close()
	// One that has ended, and was waited for.
	null, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		testkit.Missing(t, err)
	}
	fd, err := unix.PidfdOpen(null.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	null.Wait()
	if peercred.Alive(fd) {
		t.Error("a process that has ended is alive")
	}
}

// TestSecondParent: where the interpreter ends, the next takes its place, and engines that
// were forked live on.
func TestSecondParent(t *testing.T) {
	l := newLab(t, nil)
	was := l.ready(0)
	syscall.Kill(was, syscall.SIGKILL)
	l.ready(was)
	if _, s := l.engine(capacityCase{}); s.PID == 0 {
		t.Error("nothing is forked")
	}
}

// TestDiffers: each thing in which a child is not its pod's process is seen.
func TestDiffers(t *testing.T) {
	if err := checkPrivileges(); err != nil {
		testkit.Missing(t, err)
	}
	of := func() confinement {
		s, err := readConfinement(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		s.filters, s.flags = [][]byte{{1}, {2}}, []uint32{0, 0}
		s.labels = map[string]string{"current": "container_t:s0:c1,c2"}
		return s
	}
	if err := firstDifference(of(), of()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*confinement){
		"namespace": func(s *confinement) { s.spaces["net"] = "net:[1]" }, "group": func(s *confinement) { s.groups += "0::/x\n" },
		"limits": func(s *confinement) { s.limits += "x" }, "oom": func(s *confinement) { s.oom-- }, "personality": func(s *confinement) { s.personality = "00040000" },
		"label": func(s *confinement) { s.labels = map[string]string{"current": "spc_t"} }, "no label": func(s *confinement) { s.labels = nil },
		"nice": func(s *confinement) { s.nice++ }, "policy": func(s *confinement) { s.policy = "1 1" }, "io": func(s *confinement) { s.io++ }, "root": func(s *confinement) { s.root[1]++ },
		"one filter less": func(s *confinement) { s.filters = s.filters[:1] }, "another filter": func(s *confinement) { s.filters[1] = []byte{3} },
		"their order": func(s *confinement) { s.filters[0], s.filters[1] = s.filters[1], s.filters[0] }, "flags": func(s *confinement) { s.flags[0] = 2 },
	} {
		s := of()
		change(&s)
		if firstDifference(of(), s) == nil {
			t.Errorf("%s is not seen", name)
		}
	}
	for _, k := range comparedStatus {
		s := of()
		s.status[k] += "1"
		if firstDifference(of(), s) == nil {
			t.Errorf("%s is not seen", k)
		}
	}
	s := of()
	s.oom++
	if err := firstDifference(of(), s); err != nil {
		t.Errorf("that it may be killed sooner: %v", err)
	}
}

// TestRelabel: what is written to take a label on, of AppArmor and of SELinux.
func TestRelabel(t *testing.T) {
	type m = map[string]string
	for _, x := range []struct{ own, pod, want m }{
		{m{}, m{}, m{}},
		{m{"current": "unconfined"}, m{"current": "unconfined"}, m{}},
		{m{"current": "unconfined", "apparmor/current": "unconfined"}, m{"current": "cri.apparmor.d (enforce)", "apparmor/current": "cri.apparmor.d (enforce)"}, m{"apparmor/current": "changeprofile cri.apparmor.d"}},
		{m{"current": "unconfined"}, m{"current": "cri.apparmor.d (enforce)"}, m{"current": "changeprofile cri.apparmor.d"}},
		{m{"current": "system_u:system_r:spc_t:s0"}, m{"current": "system_u:system_r:container_t:s0:c1,c2"}, m{"current": "system_u:system_r:container_t:s0:c1,c2"}},
	} {
		got, _ := json.Marshal(labelWrites(x.own, x.pod))
		if want, _ := json.Marshal(x.want); string(got) != string(want) {
			t.Errorf("%v to %v: %s", x.own, x.pod, got)
		}
	}
}

// TestImage: a file that is another in the pod, or is not there, is another image.
func TestImage(t *testing.T) {
	if err := checkPrivileges(); err != nil {
		testkit.Missing(t, err)
	}
	p := &parent{pid: os.Getpid(), libraries: []string{"/bin/true"}}
	if err := p.checkSameFiles(os.Getpid()); err != nil {
		t.Error(err)
	}
	p.libraries = append(p.libraries, filepath.Join(t.TempDir(), "missing"))
	if err := p.checkSameFiles(os.Getpid()); err == nil {
		t.Error("a file that is nowhere")
	}
	const chain = `22 1 0:30 / / rw,relatime - overlay overlay rw,lowerdir=/s/2/fs:/s/1/fs,upperdir=/s/9/fs,workdir=/s/9/work
23 22 0:31 / /proc rw - proc proc rw
`
	if got := overlayLayers(mountsOf(t, chain)); got != "/s/2/fs:/s/1/fs" {
		t.Errorf("%q", got)
	}
	if got := overlayLayers(mountsOf(t, chain+"24 22 8:1 / / rw - ext4 /dev/sda rw\n")); got != "" {
		t.Errorf("below another root: %q", got)
	}
}

func mountsOf(t *testing.T, text string) []*mountinfo.Info {
	t.Helper()
	mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return mounts
}

// TestGroupAt: where a group is, of both versions and as containers have them.
func TestGroupAt(t *testing.T) {
	const mounts = `30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate
31 20 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 20 0:28 /kubepods /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 20 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
`
	for _, x := range []struct{ controllers, path, want string }{
		{"", "/kubepods/a", "/sys/fs/cgroup/kubepods/a"},
		{"cpu,cpuacct", "/kubepods/a", "/sys/fs/cgroup/cpu,cpuacct/kubepods/a"},
		{"memory", "/kubepods/a", "/sys/fs/cgroup/memory/a"},
		{"memory", "/other", ""},
		{"name=systemd", "/x", "/sys/fs/cgroup/systemd/x"},
		{"pids", "/x", ""},
	} {
		got, ok := groupAt(mountsOf(t, mounts), x.controllers, x.path)
		if got != x.want || ok != (x.want != "") {
			t.Errorf("%s %s: %q %v", x.controllers, x.path, got, ok)
		}
	}
}

// TestPace: asks that are too many count for nothing, and are allowed again later.
func TestPace(t *testing.T) {
	p := &requestLimiter{pod: 2, all: 3, within: time.Minute}
	now := time.Now()
	for i, x := range []struct {
		pod  string
		at   time.Duration
		well bool
	}{{"a", 0, true}, {"a", time.Second, true}, {"a", 2 * time.Second, false}, {"b", 3 * time.Second, true}, {"c", 4 * time.Second, false}, {"a", 59 * time.Second, false}, {"a", time.Minute, true}, {"c", 62 * time.Second, true}} {
		if reason := p.allow(x.pod, now.Add(x.at)); (reason == "") != x.well {
			t.Errorf("%d: %+v: %q", i, x, reason)
		}
	}
}
