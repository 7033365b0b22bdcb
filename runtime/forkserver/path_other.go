//go:build !linux

package forkserver

func shortPath(path string) (string, func(), error) { return path, func() {}, nil }

// Works: without a child subreaper nobody would wait for a forked engine.
const Works = false
