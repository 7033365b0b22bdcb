//go:build !linux

package store

import "os"

// allocate sets the length only: without fallocate nothing is promised, and a
// disk that fills up shows at the write, by the same error.
func allocate(f *os.File, size int64) error { return f.Truncate(size) }

// startWrite is a hint where it can be given.
func startWrite(*os.File, int64, int64) {}

// openDirect: here everything goes through the page cache.
func openDirect(string) *os.File { return nil }

func disableReadAhead(*os.File) {}

func startRead(*os.File, int64, int64) {}
