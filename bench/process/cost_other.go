//go:build !linux

package process

import "time"

// CPU is implemented on Linux only.
func CPU(...int) (time.Duration, error) { return 0, ErrNoProc }

// RSS is implemented on Linux only.
func RSS(int) (int64, error) { return 0, ErrNoProc }

// PSS is implemented on Linux only.
func PSS(int) (int64, error) { return 0, ErrNoProc }

// Tree is implemented on Linux only.
func Tree(int) ([]int, error) { return nil, ErrNoProc }
