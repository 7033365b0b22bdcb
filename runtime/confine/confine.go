// Package confine restricts an engine's process to the files that it needs, by Landlock, a user of
// its own and no_new_privs, on Linux alone; it does not restrict the network, and starts no
// process. Code in a checkpoint then reaches neither the secrets of thaw nor other models.
//
// A Plan lists what an engine may read and write. Open makes a Landlock ruleset of it,
// which Apply puts on the calling thread, together with no_new_privs and, where thaw is
// root, a user of the engine's own. What the thread then executes inherits all of it for
// ever. Everything that the plan does not list is denied: files, and signals to processes
// outside (Linux 6.12). The network is not restricted: engines listen on loopback.
//
// A user of its own could not reach an installation below a folder such as /root. It
// keeps CAP_DAC_READ_SEARCH therefore: Landlock holds for that too, so the capability
// opens what the plan lists and nothing else. Plans list no folder with secrets of the
// machine (of /etc single files only).
//
// Landlock does not cover connecting to a unix socket with a name: sockets of thaw check
// who connects.
package confine

// Plan is what one engine may do. Paths are absolute; those that do not exist are left
// out.
type Plan struct {
	// Read lists files, and folders with all below them, that may be read and executed.
	Read []string `json:"read"`
	// Write lists those that may also be written. They become the user's.
	Write []string `json:"write"`
	// User is the user id that the engine gets; 0 keeps that of this process.
	User int `json:"user,omitempty"`
}

// System lists what every program may read: libraries, and the files by which they find
// names, hosts, time and certificates.
func System() []string {
	return []string{
		"/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store",
		"/proc", "/sys/devices", "/sys/class", "/sys/bus", "/sys/module", "/sys/fs/cgroup", "/sys/kernel/mm", "/sys/dev",
		"/run/systemd/resolve", "/run/nvidia-persistenced", "/run/opengl-driver", "/run/nvidia",
		"/etc/alternatives", "/etc/ca-certificates", "/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
		"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
		"/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/hostname", "/etc/gai.conf", "/etc/services", "/etc/protocols",
		"/etc/passwd", "/etc/group", "/etc/localtime", "/etc/timezone", "/etc/locale.alias", "/etc/locale.conf", "/etc/mime.types", "/etc/magic",
		"/etc/os-release", "/etc/lsb-release", "/etc/debian_version", "/etc/machine-id", "/etc/inputrc", "/etc/mtab",
		"/etc/OpenCL", "/etc/vulkan", "/etc/nvidia", "/etc/fonts", "/etc/python3", "/etc/libnl-3", "/etc/libibverbs.d", "/etc/rdma",
	}
}

// DevicePatterns match the devices that every engine may use, and shared memory.
var DevicePatterns = []string{
	"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm",
	"/dev/nvidia*", "/dev/kfd", "/dev/dri", "/dev/infiniband", "/dev/gdrdrv",
}

// The user ids of engines: a range that neither people, services nor containers use.
const (
	FirstUser = 0x7000_0000
	LastUser  = 0x7fff_ffff
)

func IsUser(id int) bool { return id >= FirstUser && id <= LastUser }
