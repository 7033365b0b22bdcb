package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	readRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	// fileRights are the rights that a rule on a file may have.
	fileRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	scopeSignal = 1 << 1 // LANDLOCK_SCOPE_SIGNAL
)

// version is the kernel's version of Landlock; 0 where it has none.
func version() int {
	n, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 {
		return 0
	}
	return int(n)
}

// Unavailable is why no engine can be confined on this machine; "" if it can.
func Unavailable() string {
	if version() == 0 {
		return "the kernel has no Landlock (Linux 5.13 with landlock among its security modules has it)"
	}
	return ""
}

// OwnUsers reports whether engines can have users of their own: this process is root, its
// user namespace has every user, and it has the capabilities, which root in a container
// may lack.
func OwnUsers() bool {
	users, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	status, err := os.ReadFile("/proc/self/status")
	return err == nil && os.Geteuid() == 0 && strings.Join(strings.Fields(string(users)), " ") == "0 0 4294967295" &&
		canChangeUser(string(status))
}

// canChangeUser reports whether a process with this /proc/PID/status can start an engine
// under another user, end it, and remove its files.
func canChangeUser(status string) bool {
	const need = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_KILL |
		1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			have, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return err == nil && have&need == need
		}
	}
	return false
}

// Opened is a plan whose ruleset was made. Close it after Apply.
type Opened struct {
	plan   Plan
	groups []int
	file   *os.File
}

// Open makes the ruleset of a plan, and gives what it may write to its user.
func (p Plan) Open() (*Opened, error) {
	v := version()
	if v == 0 {
		return nil, errors.New("confine: " + Unavailable())
	}
	rights := uint64(unix.LANDLOCK_ACCESS_FS_REFER - 1) // all of version 1
	for i, more := range []uint64{unix.LANDLOCK_ACCESS_FS_REFER, unix.LANDLOCK_ACCESS_FS_TRUNCATE, 0, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV} {
		if v >= i+2 {
			rights |= more
		}
	}
	attr := struct{ FS, Net, Scoped uint64 }{FS: rights}
	size := unsafe.Sizeof(attr.FS)
	if v >= 6 {
		attr.Scoped, size = scopeSignal, unsafe.Sizeof(attr)
	}
	fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if e != 0 {
		return nil, fmt.Errorf("confine: landlock_create_ruleset: %w", e)
	}
	o := &Opened{plan: p, file: os.NewFile(fd, "landlock")}
	err := o.addRules(rights)
	if err == nil && p.User != 0 {
		err = o.giveToUser()
	}
	if err != nil {
		o.Close()
		return nil, fmt.Errorf("confine: %w", err)
	}
	return o, nil
}

func (o *Opened) addRules(rights uint64) error {
	devices := []string{}
	for _, pattern := range DevicePatterns {
		found, _ := filepath.Glob(pattern) // no error: the patterns are valid
		devices = append(devices, found...)
	}
	for _, list := range []struct {
		paths  []string
		rights uint64
	}{{o.plan.Read, readRights}, {o.plan.Write, rights}, {devices, rights}} {
		for _, path := range list.paths {
			if err := o.addRule(path, list.rights); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	return nil
}

func (o *Opened) addRule(path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Mode&0o006 == 0 && st.Mode&0o060 == 0o060 {
		o.groups = append(o.groups, int(st.Gid)) // such as render or video
	}
	// struct landlock_path_beneath_attr is packed: 12 bytes.
	var attr [12]byte
	*(*uint64)(unsafe.Pointer(&attr[0])) = rights
	*(*int32)(unsafe.Pointer(&attr[8])) = int32(fd)
	if _, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, o.file.Fd(), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0,
		0); e != 0 {
		return fmt.Errorf("landlock_add_rule: %w", e)
	}
	return nil
}

// giveToUser makes the user the owner of what the plan may write. Another engine of that
// user may change those folders meanwhile: no link is followed out of them.
func (o *Opened) giveToUser() error {
	for _, path := range o.plan.Write {
		st, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case !st.IsDir():
			err = os.Lchown(path, o.plan.User, o.plan.User)
		default:
			err = o.giveFolder(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *Opened) giveFolder(path string) error {
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = root.Lchown(name, o.plan.User, o.plan.User)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		return err
	})
}

// File is the ruleset, for a process that applies it to itself.
func (o *Opened) File() *os.File { return o.file }

// Groups are the groups of the devices that the plan's user needs.
func (o *Opened) Groups() []int { return slices.Compact(slices.Sorted(slices.Values(o.groups))) }

// Close closes the ruleset; threads that it was applied to stay confined.
func (o *Opened) Close() { o.file.Close() }

// Apply confines the calling thread for ever, and what it executes. The caller has locked
// the thread to its goroutine and does not unlock it.
func (o *Opened) Apply() error {
	if o.plan.User != 0 {
		if err := o.becomeUser(); err != nil {
			return fmt.Errorf("confine: user %d: %w", o.plan.User, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("confine: no_new_privs: %w", err)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, o.file.Fd(), 0, 0); e != 0 {
		return fmt.Errorf("confine: landlock_restrict_self: %w", e)
	}
	return nil
}

// becomeUser changes the user of this thread alone: package syscall changes all threads.
func (o *Opened) becomeUser() error {
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return err
	}
	groups := make([]uint32, 0, len(o.groups)+1)
	for _, g := range o.Groups() {
		groups = append(groups, uint32(g))
	}
	id := uintptr(o.plan.User)
	groups = append(groups, uint32(id))
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0); e != 0 {
		return e
	}
	for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
		if _, _, e := unix.RawSyscall(call, id, id, id); e != 0 {
			return e
		}
	}
	const mask = 1 << unix.CAP_DAC_READ_SEARCH
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: mask, Permitted: mask, Inheritable: mask}}
	if err := unix.Capset(&head, &data[0]); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_DAC_READ_SEARCH, 0, 0)
}

// Check returns an error unless a process has no_new_privs and the plan's user.
func (p Plan) Check(pid int) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	user := syscall.Geteuid()
	if p.User != 0 {
		user = p.User
	}
	want := map[string]string{"NoNewPrivs": "1", "Uid": strings.TrimSpace(strings.Repeat(fmt.Sprintf("%d ", user), 4))}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		if w, ok := want[name]; ok && strings.Join(strings.Fields(value), " ") != w {
			return fmt.Errorf("it is not confined: %s is %s, want %s", name, strings.TrimSpace(value), w)
		}
	}
	return nil
}
