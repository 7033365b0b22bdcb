package shim

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
)

// Install copies a program to a path, for an init container: whole or not at
// all, and executable by everybody.
func Install(program, path string) (err error) {
	from, err := os.Open(program)
	if err != nil {
		return err
	}
	defer from.Close()
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return fmt.Errorf("%s is a folder: name the file", path)
	}
	to, err := os.CreateTemp(filepath.Dir(path), ".thaw-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			to.Close()
			os.Remove(to.Name())
		}
	}()
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	if err := to.Chmod(0o755); err != nil {
		return err
	}
	if err := to.Close(); err != nil {
		return err
	}
	return os.Rename(to.Name(), path)
}

// Address is the pod's own: the first that others reach it by, version 4 before 6.
func Address() (string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	six := ""
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		switch {
		case !ok || !n.IP.IsGlobalUnicast():
		case n.IP.To4() != nil:
			return n.IP.String(), nil
		case six == "":
			six = n.IP.String()
		}
	}
	if six == "" {
		return "", errors.New("this container has no address that others could reach")
	}
	return six, nil
}
