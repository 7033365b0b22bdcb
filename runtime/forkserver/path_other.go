//go:build !linux

package forkserver

func shortPath(path string) (string, func(), error) { return path, func() {}, nil }

// Supported: forked engines need a child subreaper as their parent.
const Supported = false
