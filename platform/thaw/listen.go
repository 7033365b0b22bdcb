package main

import (
	"net"
	"strconv"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// listen opens the port of `thaw serve`. 127.0.0.1 and localhost also open it on ::1, where
// that is free: some clients (Node before 20, many JVMs) know localhost by that address alone.
func listen(addr string) ([]net.Listener, error) {
	// A start that fails at a busy address leaves no folder with an admin token, which client
	// verbs would find and send.
	if _, err := onLoopback(addr); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, &kit.Error{What: "cannot listen on " + addr, Err: err, Hint: "another address: thaw serve --addr 127.0.0.1:8081"}
	}
	all := []net.Listener{listener}
	if host, _, _ := net.SplitHostPort(addr); host == "127.0.0.1" || host == "localhost" {
		port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
		if other, err := net.Listen("tcp6", net.JoinHostPort("::1", port)); err == nil {
			all = append(all, other)
		}
	}
	return all, nil
}
