//go:build !linux && !darwin

package hostinfo

import "errors"

func readMemory() (Memory, error) { return Memory{}, errors.ErrUnsupported }

func groupLimit() int64 { return 0 }

func bootID() string { return "" }

func maxFiles() int { return 0 }
