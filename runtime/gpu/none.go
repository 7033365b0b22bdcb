//go:build !(linux && cgo)

package gpu

import "runtime"

func openDriver() (driver, string, error) {
	if runtime.GOOS != "linux" {
		return nil, "no GPUs: NVML is for Linux", nil
	}
	return nil, "no GPUs: thaw was built without cgo, by which it asks the driver (CGO_ENABLED=1 go build); --gpus N declares them", nil
}
