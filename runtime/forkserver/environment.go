package forkserver

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/thaw-dev/thaw/loader/durable"
)

//go:embed parent.py
var script []byte

// InstallScript writes the parent's program into a folder and returns its path.
func InstallScript(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	sum := sha256.Sum256(script)
	path := filepath.Join(dir, "parent-"+hex.EncodeToString(sum[:6])+".py")
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, script) {
		return path, nil
	}
	return path, durable.WriteFile(path, script, 0o600)
}

// importLists are the engines that can be forked, with the name of their import list in
// parent.py, which is also that of their package.
var importLists = map[string]string{"vllm": "vllm"}

// ImportList is the import list of an engine; "" if it cannot be forked.
func ImportList(engine string) string { return importLists[engine] }

type Environment struct {
	Program      string   // the command, as engines are started
	Python       []string // the interpreter and its flags, from the command's first line
	SitePackages string   // its site-packages; "" where it is not found beside the command
}

// ErrNoScript means that a program is no Python script, so it cannot be forked.
var ErrNoScript = errors.New("it is no Python script")

func FindEnvironment(program string) (Environment, error) {
	f, err := os.Open(program)
	if err != nil {
		return Environment{}, err
	}
	defer f.Close()
	head := make([]byte, 4096)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return Environment{}, fmt.Errorf("%s: %w", program, err)
	}
	python := interpreter(string(head[:n]))
	if len(python) == 0 {
		return Environment{}, fmt.Errorf("%s: %w", program, ErrNoScript)
	}
	if _, err := os.Stat(python[0]); err != nil {
		return Environment{}, fmt.Errorf("%s names an interpreter that is not there: %w", program, err)
	}
	e := Environment{Program: program, Python: python}
	sites, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(python[0])), "lib", "python3*", "site-packages"))
	if len(sites) == 1 {
		e.SitePackages = sites[0]
	}
	return e, nil
}

// interpreter reads the interpreter from the first line of a script, or from the second
// where installers hid a path too long for the kernel behind sh: ”'exec' "/path/python"
// "$0" "$@".
func interpreter(head string) []string {
	line, rest, _ := strings.Cut(head, "\n")
	line, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return nil
	}
	words := strings.Fields(line)
	if len(words) == 1 && filepath.Base(words[0]) == "sh" {
		second, _, _ := strings.Cut(rest, "\n")
		quoted, ok := strings.CutPrefix(second, "'''exec' ")
		if !ok {
			return nil
		}
		quoted = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(quoted), `"$0" "$@"`))
		words = []string{strings.Trim(quoted, `"`)}
	}
	if len(words) == 0 || !filepath.IsAbs(words[0]) || !strings.HasPrefix(filepath.Base(words[0]), "python") {
		return nil
	}
	return words
}

func (e Environment) ParentArgv(script, socket, row string) []string {
	return append(append([]string{}, e.Python...), script, socket, e.Program, row)
}

// Fingerprint identifies the state of files and folders: if it differs, the installation
// is not the imported one any more. It costs one stat each.
func Fingerprint(files []string) string {
	h := sha256.New()
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			fmt.Fprintf(h, "%s\x00-\x00", f)
			continue
		}
		fmt.Fprintf(h, "%s\x00%d\x00%d\x00", f, st.ModTime().UnixNano(), st.Size())
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// InstallFiles identify an environment before a parent has reported its files.
func (e Environment) InstallFiles() []string { return []string{e.Program, e.Python[0]} }

// HostSocket is the socket of a node's interpreter, below the folder of sockets that pods
// mount. Its own folder is root's.
func HostSocket(sockets string) string { return filepath.Join(sockets, "warm", "s") }
