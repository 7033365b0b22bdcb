// Shim keeps the part of the contract that a pod's shape depends on, in place of
// thaw: it installs itself from an init container, is run from another image,
// and says what it finds there.
package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == "runtime" && os.Args[2] == "--install" {
		install(os.Args[3])
		return
	}
	if len(os.Args) != 2 || os.Args[1] != "runtime" {
		os.Stderr.WriteString("unknown: " + strings.Join(os.Args[1:], " ") + "\n")
		os.Exit(2)
	}
	http.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(found()) })
	os.Stderr.WriteString(http.ListenAndServe(":"+os.Getenv("PORT"), nil).Error())
	os.Exit(1)
}

func install(path string) {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	from, err := os.Open(self)
	if err != nil {
		panic(err)
	}
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		panic(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		panic(err)
	}
	if err := to.Close(); err != nil {
		panic(err)
	}
}

// found is what a container is: its program, its user, what it may do and where
// it may write.
func found() map[string]any {
	self, _ := os.Executable()
	f := map[string]any{"program": self, "uid": os.Getuid(), "gid": os.Getgid(), "env": os.Environ(), "writes": []string{}}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		k, v, _ := strings.Cut(line, ":")
		switch k {
		case "CapEff", "CapBnd", "NoNewPrivs", "Seccomp":
			f[k] = strings.TrimSpace(v)
		}
	}
	var writes []string
	for _, dir := range []string{"/", "/tmp", "/dev/shm", os.Getenv("THAW_SOCKETS"), filepath.Dir(self)} {
		if os.WriteFile(filepath.Join(dir, "x"), nil, 0o600) == nil {
			writes = append(writes, dir)
		}
	}
	f["writes"] = writes
	read, _ := os.ReadFile(filepath.Join(os.Getenv("THAW_SOCKETS"), "weights"))
	f["weights"] = string(read)
	_, err := os.Stat("/var/run/secrets/kubernetes.io/serviceaccount/token")
	f["token"] = err == nil
	return f
}
