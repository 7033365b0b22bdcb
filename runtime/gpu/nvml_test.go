//go:build linux && cgo

package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit"
)

// fakeDevice is a mock of one healthy GPU.
func fakeDevice(uuid string) *mock.Device {
	return &mock.Device{
		GetUUIDFunc:             func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
		GetNameFunc:             func() (string, nvml.Return) { return "NVIDIA Test", nvml.SUCCESS },
		GetMemoryInfoFunc:       func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 80 << 30, Free: 70 << 30}, nvml.SUCCESS },
		GetUtilizationRatesFunc: func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 42}, nvml.SUCCESS },
		GetTotalEccErrorsFunc: func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
			return 0, nvml.ERROR_NOT_SUPPORTED
		},
		GetComputeRunningProcessesFunc:  func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS },
		GetGraphicsRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS },
		GetSupportedEventTypesFunc:      func() (uint64, nvml.Return) { return wanted, nvml.SUCCESS },
		RegisterEventsFunc:              func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS },
		GetP2PStatusFunc: func(nvml.Device, nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
			return nvml.P2P_STATUS_NOT_SUPPORTED, nvml.SUCCESS
		},
		GetTopologyCommonAncestorFunc: func(nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
			return 0, nvml.ERROR_NOT_SUPPORTED
		},
	}
}

// TestWiring: groups come from NVLink, or else from the memory node; what the
// driver does not say is no group.
func TestWiring(t *testing.T) {
	wired := func(n int, link, node func(i, j int) bool, asked *int) []*mock.Device {
		cards := make([]*mock.Device, n)
		at := func(d nvml.Device) int { return slices.Index(cards, d.(*mock.Device)) }
		for i := range cards {
			cards[i] = fakeDevice(fmt.Sprint("GPU-", i))
			if link != nil {
				cards[i].GetP2PStatusFunc = func(d nvml.Device, _ nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
					*asked++
					if link(i, at(d)) {
						return nvml.P2P_STATUS_OK, nvml.SUCCESS
					}
					return nvml.P2P_STATUS_NOT_SUPPORTED, nvml.SUCCESS
				}
			}
			if node != nil {
				cards[i].GetTopologyCommonAncestorFunc = func(d nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
					if node(i, at(d)) {
						return nvml.TOPOLOGY_HOSTBRIDGE, nvml.SUCCESS
					}
					return nvml.TOPOLOGY_SYSTEM, nvml.SUCCESS
				}
			}
		}
		return cards
	}
	half := func(i, j int) bool { return i/2 == j/2 }
	for _, c := range []struct {
		name       string
		n          int
		link, node func(i, j int) bool
		want       string
	}{
		{"one GPU", 1, half, half, "[0]"},
		{"NVLink in pairs", 4, half, func(i, j int) bool { return true }, "[1 1 2 2]"},
		{"a chain of NVLink", 4, func(i, j int) bool { return i-j == 1 || j-i == 1 }, nil, "[1 1 1 1]"},
		{"two memory nodes", 4, nil, half, "[1 1 2 2]"},
		{"each its own node", 2, nil, func(i, j int) bool { return false }, "[1 2]"},
		{"nothing is said", 3, nil, nil, "[0 0 0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := 0
			f := facts(t, machine(wired(c.n, c.link, c.node, &asked)...))
			var got []int
			for _, g := range f.List() {
				got = append(got, g.Group)
			}
			if fmt.Sprint(got) != c.want {
				t.Errorf("%v, want %s", got, c.want)
			}
			was := asked
			if f.List(); asked != was {
				t.Error("the wiring is read every time")
			}
		})
	}
}

func machine(cards ...*mock.Device) *mock.Interface {
	return &mock.Interface{
		InitFunc:     func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc: func() nvml.Return { return nvml.SUCCESS },
		ErrorStringFunc: func(r nvml.Return) string {
			return map[nvml.Return]string{nvml.ERROR_GPU_IS_LOST: "GPU is lost", nvml.ERROR_UNKNOWN: "Unknown Error", nvml.ERROR_LIB_RM_VERSION_MISMATCH: "Driver/library version mismatch"}[r]
		},
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(cards), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			return cards[i], nvml.SUCCESS
		},
	}
}

func facts(t *testing.T, lib nvml.Interface) *Facts {
	t.Helper()
	d, why, err := openNVML(lib, "/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	return newFacts(d, why)
}

func TestOpen(t *testing.T) {
	for _, c := range []struct {
		name string
		ret  nvml.Return
		why  string
		err  bool

		control string
	}{
		{"driver", nvml.SUCCESS, "", false, "/nowhere"},
		{"no library", nvml.ERROR_LIBRARY_NOT_FOUND, "no GPUs: no driver", false, "/nowhere"},
		{"no module", nvml.ERROR_DRIVER_NOT_LOADED, "no GPUs: no driver", false, "/dev/null"},
		{"broken", nvml.ERROR_GPU_IS_LOST, "no GPUs: NVML: GPU is lost", true, "/nowhere"},
		{"a container without the library", nvml.ERROR_LIBRARY_NOT_FOUND, "no GPUs: NVML's library is not here, though /dev/null is: a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility", true, "/dev/null"},
		{"a container that lost its GPUs", nvml.ERROR_UNKNOWN, "no GPUs: NVML: Unknown Error: the devices cannot be opened; a container loses them by systemctl daemon-reload of its host: restart it", true, "/nowhere"},
		{"a library of another version", nvml.ERROR_LIB_RM_VERSION_MISMATCH, "no GPUs: NVML: Driver/library version mismatch: the driver's library is of another version than its kernel module: restart the machine", true, "/nowhere"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine()
			m.InitFunc = func() nvml.Return { return c.ret }
			d, why, err := openNVML(m, c.control)
			if why != c.why || (err != nil) != c.err || (d == nil) == (c.why == "") {
				t.Errorf("got %v, %q, %v", d, why, err)
			}
			if d == nil && newFacts(nil, why).List() != nil {
				t.Error("GPUs without a driver")
			}
		})
	}
}

func TestList(t *testing.T) {
	lost, ecc := fakeDevice("GPU-b"), fakeDevice("GPU-c")
	lost.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	ecc.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 3, nvml.SUCCESS }
	f := facts(t, machine(fakeDevice("GPU-a"), lost, ecc))
	defer f.Close()
	got := f.List()
	want := []functions.GPU{
		{Index: 0, UUID: "GPU-a", Name: "NVIDIA Test", MemoryTotal: 80 << 30, MemoryFree: 70 << 30, Utilization: 42, Health: Healthy},
		{Index: 1, UUID: "GPU-b", Name: "NVIDIA Test", Utilization: 42, Health: "memory: GPU is lost"},
		{Index: 2, UUID: "GPU-c", Name: "NVIDIA Test", MemoryTotal: 80 << 30, MemoryFree: 70 << 30, Utilization: 42, Health: "3 uncorrectable memory errors since the driver started"},
	}
	if len(got) != len(want) {
		t.Fatalf("%d GPUs", len(got))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("GPU %d: %+v\nwant %+v", i, got[i], want[i])
		}
	}
}

// Processes that no thaw started are named, largest first; those of thaw and those that
// have ended are not.
func TestHolders(t *testing.T) {
	if !hostProcesses() {
		testkit.Missing(t, "the processes of this machine are not seen")
	}
	ours := exec.Command("sleep", "60")
	ours.Env = []string{"A=b", "THAW_SUPERVISED=r1"}
	other := exec.Command("sleep", "60")
	other.Env = []string{"A=b"}
	for _, c := range []*exec.Cmd{ours, other} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Wait()
		defer c.Process.Kill()
	}
	d := fakeDevice("GPU-a")
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{
			{Pid: uint32(ours.Process.Pid), UsedGpuMemory: 40 << 30}, {Pid: uint32(os.Getpid()), UsedGpuMemory: 2 << 30},
			{Pid: uint32(other.Process.Pid), UsedGpuMemory: 60 << 30}, {Pid: 4_194_305, UsedGpuMemory: 1 << 30},
		}, nvml.SUCCESS
	}
	d.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	f := facts(t, machine(d))
	var text string
	testkit.Eventually(t, "both have executed", func() (bool, string) {
		text = f.Holders(0)
		return strings.Contains(text, "(sleep)") && strings.Count(text, "process") == 2, text
	})
	if want := fmt.Sprintf("process %d (sleep) holds 60 GiB, process %d (gpu.test) holds 2 GiB", other.Process.Pid,
		os.Getpid()); text != want {
		t.Errorf("%s\nwant %s", text, want)
	}
	if g := f.List()[0]; g.Foreign != 62<<30 || g.Holders != text {
		t.Errorf("%+v", g)
	}
	if held := f.HeldBy("r1"); held != 40<<30 || f.HeldBy("r2") != 0 || f.HeldBy("") != 1<<30 {
		t.Errorf("r1 holds %v", held)
	}
}

func TestListOfAHungDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		d := fakeDevice("GPU-a")
		hung := false
		d.GetUUIDFunc = func() (string, nvml.Return) {
			if hung {
				<-hang
			}
			return "GPU-a", nvml.SUCCESS
		}
		f := facts(t, machine(d))
		if got := f.List(); got[0].Health != Healthy {
			t.Fatal(got)
		}
		hung = true
		began := time.Now()
		if got := f.List(); got[0].Health != "the driver does not answer" || time.Since(began) != answerWithin {
			t.Errorf("%+v after %v", got, time.Since(began))
		}
		close(hang)
		synctest.Wait()
		hung = false
		if got := f.List(); got[0].Health != Healthy {
			t.Error(got)
		}
	})
}

func TestWatch(t *testing.T) {
	d, ecc := fakeDevice("GPU-a"), fakeDevice("GPU-b")
	m := machine(d, ecc)
	events := []nvml.EventData{
		{Device: d, EventType: nvml.EventTypeXidCriticalError, EventData: 31}, // a program's own
		{Device: d, EventType: nvml.EventTypeXidCriticalError, EventData: 79},
		{Device: d, EventType: nvml.EventTypeDoubleBitEccError},
		{Device: ecc, EventType: nvml.EventTypeDoubleBitEccError},
		{Device: ecc, EventType: nvml.EventTypeDoubleBitEccError},
	}
	ctx, cancel := context.WithCancel(t.Context())
	m.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { return nvml.SUCCESS },
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				if len(events) == 0 {
					cancel()
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
				e := events[0]
				events = events[1:]
				return e, nvml.SUCCESS
			},
		}, nvml.SUCCESS
	}
	f := facts(t, m)
	var told []string
	if err := f.Watch(ctx, func(uuid, what string) { told = append(told, uuid+" "+what) }); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if !slices.Equal(told, []string{"GPU-a XID 79: fallen off the bus", "GPU-b uncorrectable memory error"}) {
		t.Errorf("told %q", told)
	}
	if got := f.List(); got[0].Health != "XID 79: fallen off the bus" || got[1].Health != "uncorrectable memory error" {
		t.Errorf("%+v", got)
	}
}

// The machine's own facts, whatever they are; with THAW_GPU=1 there must be one.
func TestReal(t *testing.T) {
	f, err := Open()
	if err != nil {
		t.Log(err)
	}
	defer f.Close()
	gpus := f.List()
	t.Log(f.Why, gpus)
	if os.Getenv("THAW_GPU") != "1" {
		return
	}
	if len(gpus) == 0 {
		t.Fatal("no GPU: ", f.Why)
	}
	for _, g := range gpus {
		if g.UUID == "" || g.MemoryTotal == 0 || g.MemoryFree > g.MemoryTotal {
			t.Errorf("%+v", g)
		}
	}
}
