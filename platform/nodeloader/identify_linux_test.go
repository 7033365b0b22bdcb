package nodeloader

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/runtime/peercred"
)

func listener(t *testing.T) (*net.UnixListener, string) {
	path := filepath.Join(folder(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, path
}

// TestDialerIdentity: another process is identified by the kernel's credentials.
func TestDialerIdentity(t *testing.T) {
	l, path := listener(t)
	child := exec.Command(os.Args[0], "stay")
	child.Env = append(os.Environ(), dialEnv+"="+path)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p, err := peercred.Of(conn)
	if err != nil || p.PID != child.Process.Pid || !p.Alive() {
		t.Errorf("%+v, %v; want %d", p, err, child.Process.Pid)
	}
	p.Close()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(child.Process.Pid) + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	self, _ := os.ReadFile("/proc/self/cgroup")
	want, _ := podOf(string(text), string(self)) // "" unless these tests run in a pod
	uid, err := IdentifyPod(conn)
	if uid != want || want == "" && !errors.Is(err, errNoPod) {
		t.Errorf("%q, %v; want %q", uid, err, want)
	}
	if want == "" {
		want = "local-" + strconv.Itoa(child.Process.Pid)
	}
	if uid, err = IdentifyAny(conn); uid != want || err != nil {
		t.Errorf("%q, %v; want %q", uid, err, want)
	}
}

// TestDialerExited: a process that has ended is refused, because its id may be
// reused.
func TestDialerExited(t *testing.T) {
	for _, how := range []string{"waited for", "not waited for yet"} {
		l, path := listener(t)
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), dialEnv+"="+path)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		if how == "waited for" {
			child.Wait()
		}
		conn, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		// Two reads return the child's byte and the end of the stream.
		b := make([]byte, 2)
		conn.Read(b)
		conn.Read(b)
		if how != "waited for" {
			// The stream ends before the process does.
			if err := unix.Waitid(unix.P_PID, child.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
				t.Fatal(err)
			}
		}
		if uid, err := IdentifyAny(conn); err == nil || !strings.Contains(err.Error(), "has ended") && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %q, %v", how, uid, err)
		}
		child.Wait()
	}
}
