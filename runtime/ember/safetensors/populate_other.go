//go:build unix && !linux

package safetensors

import "runtime"

func populate(b []byte) { runtime.KeepAlive(readPages(b)) }
