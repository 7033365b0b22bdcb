//go:build !linux && !darwin

package nodestore

import "errors"

func bootID() string { return "" }

func totalMemory() (int64, error) {
	return 0, errors.New("how much memory this machine has is not known here: say --memory")
}

func groupMemory() int64 { return 0 }
