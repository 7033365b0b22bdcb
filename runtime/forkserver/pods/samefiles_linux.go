package pods

import (
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// checkSameFiles checks that a pod has the files that the interpreter has open: modules
// that are imported late come from the pod's. By the kernel's word a file is the same if
// device and inode are, or if both are of one list of lower layers, which is one image to
// the byte. A pod that changes its own files changes its own engine, which by then is
// confined as it is.
func (p *parent) checkSameFiles(pid int) error {
	ours, err := openRoot(p.pid)
	if err != nil {
		return err
	}
	defer unix.Close(ours.fd)
	childEnd, err := openRoot(pid)
	if err != nil {
		return err
	}
	defer unix.Close(childEnd.fd)
	for _, path := range p.libraries {
		a, err := ours.stat(path)
		if err != nil {
			return fmt.Errorf("the interpreter's own %s: %w", path, err)
		}
		b, err := childEnd.stat(path)
		if err != nil {
			return fmt.Errorf("another image: it has no %s", path)
		}
		if a.Dev == b.Dev && a.Ino == b.Ino {
			continue
		}
		layered := ours.layers != "" && ours.layers == childEnd.layers && a.Dev == ours.dev && b.Dev == childEnd.dev
		if !layered || a.Size != b.Size || a.Mode != b.Mode || a.Mtim != b.Mtim {
			return fmt.Errorf("another image: its %s is not the interpreter's", path)
		}
	}
	return nil
}

type root struct {
	fd     int
	dev    uint64
	layers string // of an overlay; "" is none
}

func openRoot(pid int) (r root, err error) {
	in := fmt.Sprintf("/proc/%d", pid)
	mounts, err := readMounts(in)
	if err != nil {
		return r, err
	}
	r.layers = overlayLayers(mounts)
	if r.fd, err = unix.Open(in+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return r, &os.PathError{Op: "open", Path: in + "/root", Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(r.fd, &st); err != nil {
		unix.Close(r.fd)
		return r, err
	}
	r.dev = st.Dev
	return r, nil
}

// overlayLayers are the folders below the overlay that is /.
func overlayLayers(mounts []*mountinfo.Info) string {
	found := ""
	for _, m := range mounts {
		if m.Mountpoint != "/" {
			continue
		}
		found = "" // the last one is on top
		if m.FSType != "overlay" {
			continue
		}
		for o := range strings.SplitSeq(m.VFSOptions, ",") {
			if l, ok := strings.CutPrefix(o, "lowerdir="); ok {
				found = l
			}
		}
	}
	return found
}

// stat looks at a path as the process would see it: no link leads outside its root.
func (r root) stat(path string) (st unix.Stat_t, err error) {
	fd, err := unix.Openat2(r.fd, path,
		&unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return st, err
	}
	defer unix.Close(fd)
	return st, unix.Fstat(fd, &st)
}
