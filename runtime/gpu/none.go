//go:build !(linux && cgo)

package gpu

import "runtime"

func openDriver() (driver, string, error) {
	if runtime.GOOS != "linux" {
		return nil, "no GPUs: NVML is for Linux", nil
	}
	return nil, "no GPUs: built without cgo", nil
}
