//go:build !linux && !darwin

package hostinfo

import "errors"

func ReadMemory() (Memory, error) { return Memory{}, errors.ErrUnsupported }

func GroupLimit() int64 { return 0 }

func BootID() string { return "" }

func MaxFiles() int { return 0 }

func FreeDisk(string) (int64, error) { return 0, errors.ErrUnsupported }
