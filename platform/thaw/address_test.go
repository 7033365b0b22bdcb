package main

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"testing"
)

// TestBusyAddress: a server whose address is taken leaves no folder, whose admin token the
// verbs would find and send to the one that has the address.
func TestBusyAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := prepare(t, nil)
	code := run(t.Context(), append(p.args, "--addr", l.Addr().String()), strings.NewReader(""), p.log, p.log)
	if _, err := os.Stat(p.data); code != 1 || !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(p.log.String(), "cannot listen on "+l.Addr().String()) {
		t.Errorf("%d %v %s", code, err, p.log)
	}
}
