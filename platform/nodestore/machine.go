package nodestore

import (
	"fmt"
	"os"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/hostinfo"
)

// Machine returns an identity of this host as file systems see it: two processes with the
// same identity can open the same paths. The boot id distinguishes hosts of one name, the
// name distinguishes containers of one host.
func Machine() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	if boot := hostinfo.BootID(); boot != "" {
		return host + "/" + boot
	}
	return host
}

// autoMemory is the share of the machine's memory for engines, if no size is configured.
const autoMemory = 0.8

// Memory is the host memory that all replicas may reserve together: 80 % of the smaller of
// the machine's total and this process's cgroup limit.
func Memory() (functions.Bytes, error) {
	m, err := hostinfo.ReadMemory()
	if err != nil {
		return 0, fmt.Errorf("the machine's memory is not known (--memory sets it): %w", err)
	}
	total := m.Total
	if limit := hostinfo.GroupLimit(); limit > 0 && limit < total {
		total = limit
	}
	return functions.Bytes(autoMemory * float64(total)), nil
}
