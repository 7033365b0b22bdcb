// Pause does nothing until it is told to end, and buries the orphans that come to
// it: it is the first process of every pod, and of the cluster's own namespace.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	news := make(chan os.Signal, 16)
	signal.Notify(news, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for {
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
		if s := <-news; s != syscall.SIGCHLD {
			return
		}
	}
}
