//go:build !linux

package store

import "os"

// allocate sets the length only: without fallocate nothing is promised, and a
// disk that fills up shows at the write, by the same error.
func allocate(f *os.File, size int64) error { return f.Truncate(size) }

// flush is a hint where it can be given.
func flush(*os.File, int64, int64) {}

// openPast: here everything goes through the page cache.
func openPast(string) *os.File { return nil }

func apart(*os.File) {}

func ahead(*os.File, int64, int64) {}
