// Image writes an OCI archive of one layer from static programs, for a machine
// without a registry.
//
//	image -o hello.tar dev.local/hello:test bin/hello
//	image -o engine.tar dev.local/engine:test bin/thaw=/usr/bin/thaw weights.bin=/weights.bin
//
// The first file is the entry point. The same files give the same archive.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

func main() {
	out := flag.String("o", "", "`FILE` to write")
	user := flag.String("user", "65532:65532", "`UID:GID` that the program runs as")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: image -o FILE NAME:TAG FILE[=PATH]…    the first file is the program")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *out == "" || flag.NArg() < 2 {
		flag.Usage()
		os.Exit(2)
	}
	if err := build(*out, flag.Arg(0), *user, flag.Args()[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// build makes the whole archive in memory first: what is written is complete.
func build(out, name, user string, files []string) error {
	if i := strings.LastIndexByte(name, ':'); i < 1 || strings.ContainsAny(name[i+1:], "/") || name[i+1:] == "" {
		return fmt.Errorf("%q has no tag: say %s:test", name, name)
	} else if name[i+1:] == "latest" {
		return errors.New("the tag latest is always pulled, and there is nowhere to pull it from: choose another")
	}
	layer, entry, err := layer(files)
	if err != nil {
		return err
	}
	box := archive{}
	config := box.json("application/vnd.oci.image.config.v1+json", map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{entry}, "User": user, "WorkingDir": "/", "Env": []string{"PATH=" + path.Dir(entry) + ":/usr/bin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	manifest := box.json("application/vnd.oci.image.manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []any{box.blob("application/vnd.oci.image.layer.v1.tar", layer)},
	})
	manifest["platform"] = map[string]string{"architecture": runtime.GOARCH, "os": "linux"}
	manifest["annotations"] = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}})
	if err != nil {
		return err
	}
	box.file("index.json", index)
	box.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return box.write(out)
}

// layer is the tar of the files, with the few that every program expects.
func layer(files []string) (data []byte, entry string, err error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{"/": true}
	var dir func(name string, mode int64)
	dir = func(name string, mode int64) {
		if made[name] {
			return
		}
		dir(path.Dir(name), 0o755)
		made[name] = true
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name[1:] + "/", Mode: mode})
	}
	put := func(name string, mode int64, data []byte) {
		dir(path.Dir(name), 0o755)
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name[1:], Mode: mode, Size: int64(len(data))})
		w.Write(data)
	}
	dir("/tmp", 0o1777)
	put("/etc/passwd", 0o644, []byte("root:x:0:0::/root:/\nnonroot:x:65532:65532::/tmp:/\n"))
	for i, f := range files {
		from, to, named := strings.Cut(f, "=")
		if !named {
			to = "/" + filepath.Base(from)
		}
		if !path.IsAbs(to) || path.Clean(to) != to || to == "/" {
			return nil, "", fmt.Errorf("%s: %q is no absolute path of a file", from, to)
		}
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, "", err
		}
		mode := int64(0o644)
		if i == 0 {
			entry = to
			if err := static(from); err != nil {
				return nil, "", err
			}
		}
		if st, err := os.Stat(from); err == nil && st.Mode()&0o111 != 0 {
			mode = 0o755
		}
		put(to, mode, data)
	}
	return buf.Bytes(), entry, w.Close()
}

// static refuses a program that could not start in an image of nothing else.
func static(file string) error {
	f, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("%s is no Linux program: %w", file, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s wants shared libraries: build it with CGO_ENABLED=0", file)
		}
	}
	return nil
}

type entry struct {
	name string
	data []byte
}

// archive is an OCI image layout, in the order in which it was filled.
type archive struct{ list []entry }

func (a *archive) file(name string, data []byte) { a.list = append(a.list, entry{name, data}) }

func (a *archive) blob(kind string, data []byte) map[string]any {
	d := digest(data)
	a.file("blobs/sha256/"+strings.TrimPrefix(d, "sha256:"), data)
	return map[string]any{"mediaType": kind, "digest": d, "size": len(data)}
}

func (a *archive) json(kind string, v any) map[string]any {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain maps of strings and numbers
	}
	return a.blob(kind, data)
}

func (a *archive) write(file string) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	w := tar.NewWriter(f)
	for _, e := range a.list {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: 0o644, Size: int64(len(e.data))}); err != nil {
			return err
		}
		if _, err := io.Copy(w, bytes.NewReader(e.data)); err != nil {
			return err
		}
	}
	return w.Close()
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
