//go:build linux && cgo

package gpu

import (
	"context"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/thaw-dev/thaw/functions"
)

func openDriver() (driver, string, error) { return openNVML(nvml.New(), "/dev/nvidiactl") }

// openNVML opens the driver; control is its device.
func openNVML(lib nvml.Interface, control string) (driver, string, error) {
	ret := lib.Init()
	err := fmt.Errorf("NVML: %s", lib.ErrorString(ret))
	switch _, missing := os.Stat(control); {
	case ret == nvml.SUCCESS:
		return &nvmlDriver{lib: lib}, "", nil
	case ret == nvml.ERROR_LIBRARY_NOT_FOUND && missing == nil:
		err = fmt.Errorf("NVML's library is not here, though %s is: a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility", control)
	case ret == nvml.ERROR_LIBRARY_NOT_FOUND, ret == nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, "no GPUs: no driver", nil
	case ret == nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		err = fmt.Errorf("%w: the driver's library is of another version than its kernel module: restart the machine", err)
	case ret == nvml.ERROR_UNKNOWN, ret == nvml.ERROR_NO_PERMISSION:
		err = fmt.Errorf("%w: the devices cannot be opened; a container loses them by systemctl daemon-reload of its host: restart it", err)
	}
	return nil, "no GPUs: " + err.Error(), err
}

type nvmlDriver struct {
	lib    nvml.Interface
	groups []int // by index; the wiring does not change while a driver runs
}

func (n *nvmlDriver) close() { n.lib.Shutdown() }

// list never fails as a whole: a value that cannot be read becomes the GPU's health.
func (n *nvmlDriver) list() []functions.GPU {
	count, ret := n.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	gpus := make([]functions.GPU, 0, count)
	devices := make([]nvml.Device, 0, count)
	for i := range count {
		g := functions.GPU{Index: i, Health: Healthy}
		if d, ret := n.lib.DeviceGetHandleByIndex(i); ret == nvml.SUCCESS {
			n.describe(d, &g)
			devices = append(devices, d)
		} else {
			g.Health = n.lib.ErrorString(ret)
		}
		gpus = append(gpus, g)
	}
	if len(n.groups) != count && len(devices) == count {
		n.groups = wiring(devices)
	}
	if len(n.groups) == count {
		for i := range gpus {
			gpus[i].Group = n.groups[i]
		}
	}
	return gpus
}

// wiring groups GPUs with fast connections, numbered from 1: those joined by NVLink,
// or without NVLink those of one NUMA node. 0 means one GPU or unknown.
func wiring(devices []nvml.Device) []int {
	groups := make([]int, len(devices))
	if len(devices) < 2 {
		return groups
	}
	linked := func(a, b nvml.Device) bool {
		status, ret := a.GetP2PStatus(b, nvml.P2P_CAPS_INDEX_NVLINK)
		return ret == nvml.SUCCESS && status == nvml.P2P_STATUS_OK
	}
	said, any := false, false
	near := func(a, b nvml.Device) bool {
		level, ret := a.GetTopologyCommonAncestor(b)
		said = said || ret == nvml.SUCCESS
		return ret == nvml.SUCCESS && level <= nvml.TOPOLOGY_NODE
	}
	join := func(joined func(a, b nvml.Device) bool) {
		next := 0
		for i := range devices {
			groups[i] = 0
		}
		var spread func(i int)
		spread = func(i int) {
			groups[i] = next
			for j := range devices {
				if groups[j] == 0 && joined(devices[i], devices[j]) {
					any = true
					spread(j)
				}
			}
		}
		for i := range devices {
			if groups[i] == 0 {
				next++
				spread(i)
			}
		}
	}
	if join(linked); any {
		return groups
	}
	if join(near); !said {
		clear(groups)
	}
	return groups
}

func (n *nvmlDriver) describe(d nvml.Device, g *functions.GPU) {
	ill := func(ret nvml.Return, what string) {
		if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED && g.Health == Healthy {
			g.Health = what + ": " + n.lib.ErrorString(ret)
		}
	}
	var ret nvml.Return
	g.UUID, ret = d.GetUUID()
	ill(ret, "uuid")
	g.Name, ret = d.GetName()
	ill(ret, "name")
	m, ret := d.GetMemoryInfo()
	ill(ret, "memory")
	g.MemoryTotal, g.MemoryFree = functions.Bytes(m.Total), functions.Bytes(m.Free)
	u, ret := d.GetUtilizationRates()
	ill(ret, "utilization")
	g.Utilization = int(u.Gpu)
	errors, ret := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	if ret == nvml.SUCCESS && errors > 0 && g.Health == Healthy {
		g.Health = fmt.Sprintf("%d uncorrectable memory errors since the driver started", errors)
	}
}

// holders are the processes with compute or graphics memory on a GPU.
func (n *nvmlDriver) holders(index int) (list []holder) {
	d, ret := n.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil
	}
	seen := map[int]bool{}
	for _, read := range []func() ([]nvml.ProcessInfo, nvml.Return){d.GetComputeRunningProcesses, d.GetGraphicsRunningProcesses} {
		infos, ret := read()
		if ret != nvml.SUCCESS {
			continue
		}
		for _, p := range infos {
			h := holder{pid: int(p.Pid), bytes: max(functions.Bytes(p.UsedGpuMemory), 0)} // NVML_VALUE_NOT_AVAILABLE is negative
			if !seen[h.pid] {
				seen[h.pid] = true
				list = append(list, h)
			}
		}
	}
	return list
}

const wanted = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError

// waitMillis bounds one wait for an event; ctx is checked between waits.
const waitMillis = 500

func (n *nvmlDriver) watch(ctx context.Context, bad func(uuid, what string)) error {
	count, ret := n.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("NVML: %s", n.lib.ErrorString(ret))
	}
	set, ret := n.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("NVML: events: %s", n.lib.ErrorString(ret))
	}
	defer set.Free()
	watched := 0
	for i := range count {
		d, ret := n.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		types, ret := d.GetSupportedEventTypes()
		if ret != nvml.SUCCESS || types&wanted == 0 {
			continue
		}
		if d.RegisterEvents(types&wanted, set) == nvml.SUCCESS {
			watched++
		}
	}
	if watched == 0 { // old cards, some virtual ones
		<-ctx.Done()
		return context.Cause(ctx)
	}
	for ctx.Err() == nil {
		e, ret := set.Wait(waitMillis)
		if ret == nvml.ERROR_TIMEOUT {
			continue
		}
		if ret != nvml.SUCCESS {
			return fmt.Errorf("NVML: events: %s", n.lib.ErrorString(ret))
		}
		what := verdict(e.EventType, e.EventData)
		if what == "" || e.Device == nil {
			continue
		}
		if uuid, ret := e.Device.GetUUID(); ret == nvml.SUCCESS {
			bad(uuid, what)
		}
	}
	return context.Cause(ctx)
}

// verdict describes the hardware fault of an event; "" for a program's own error (such
// as an illegal address: XID 13, 31, 43, 45) or a contained ECC error.
func verdict(kind, xid uint64) string {
	if kind == nvml.EventTypeDoubleBitEccError {
		return "uncorrectable memory error"
	}
	if kind != nvml.EventTypeXidCriticalError {
		return ""
	}
	what := map[uint64]string{
		48:  "uncorrectable memory error",
		61:  "internal micro-controller breakpoint",
		62:  "internal micro-controller halt",
		64:  "row remapping failed",
		74:  "NVLink error",
		79:  "fallen off the bus",
		95:  "uncontained memory error",
		119: "GSP does not answer",
		120: "GSP error",
		140: "unrecovered memory error",
	}[xid]
	if what == "" {
		return ""
	}
	return fmt.Sprintf("XID %d: %s", xid, what)
}
