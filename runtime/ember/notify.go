package ember

import (
	"net"
	"strconv"
)

// notifier sends sd_notify datagrams to the parent. A missing or full socket
// is not the engine's trouble: the listener can still be asked.
type notifier struct{ conn *net.UnixConn }

func openNotifier(path string) notifier {
	if path == "" {
		return notifier{}
	}
	// net takes a leading @ as Linux's abstract namespace.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return notifier{}
	}
	return notifier{c}
}

func (n notifier) send(s string) {
	if n.conn != nil {
		n.conn.Write([]byte(s)) // see the type
	}
}

func (n notifier) loading(percent int) {
	n.send("STATUS=loading percent=" + strconv.Itoa(percent) + "\n")
}

func (n notifier) ready() { n.send("READY=1\nSTATUS=ready\n") }

func (n notifier) stopping() { n.send("STOPPING=1\n") }

func (n notifier) close() {
	if n.conn != nil {
		n.conn.Close()
	}
}
