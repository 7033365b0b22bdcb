package engine

import (
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// ProgramPaths lists the files and folders that a program reads when it runs: itself, its
// folder, the installation around it, and the same of the interpreter of a script and of
// the Python that a virtual environment was made from.
func ProgramPaths(program string) (paths []string) {
	seen := map[string]bool{}
	var visit func(path string)
	visit = func(path string) {
		for _, p := range []string{path, resolve(path)} {
			if !filepath.IsAbs(p) || seen[p] {
				continue
			}
			seen[p] = true
			paths = append(paths, installation(p)...)
			if i := interpreter(p); i != "" {
				visit(i)
				for _, named := range shellPrograms(p, i) {
					visit(named)
				}
			}
			if home := venvHome(filepath.Dir(filepath.Dir(p))); home != "" {
				visit(filepath.Join(home, filepath.Base(p)))
				visit(filepath.Join(home, "python3"))
			}
		}
	}
	visit(program)
	return paths
}

// absolutePath is one in the text of a shell script.
var absolutePath = regexp.MustCompile(`/[^\s"'$;|&<>()=:]+`)

// shellPrograms lists the programs that a shell script names by absolute paths: wrappers
// of engines end with exec.
func shellPrograms(script, interpreter string) (programs []string) {
	if !strings.HasSuffix(filepath.Base(interpreter), "sh") {
		return nil
	}
	f, err := os.Open(script)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 16<<10))
	for _, p := range absolutePath.FindAllString(string(b), 64) {
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			programs = append(programs, p)
		}
	}
	return programs
}

// installation is a program, its folder, and what stands beside a folder named bin.
func installation(program string) []string {
	dir := filepath.Dir(program)
	paths := []string{program, dir}
	if filepath.Base(dir) != "bin" {
		return paths
	}
	prefix := filepath.Dir(dir)
	for _, mark := range []string{"pyvenv.cfg", "conda-meta"} {
		if _, err := os.Stat(filepath.Join(prefix, mark)); err == nil {
			return append(paths, prefix)
		}
	}
	for _, sub := range []string{"lib", "lib64", "libexec", "include"} {
		paths = append(paths, filepath.Join(prefix, sub))
	}
	return paths
}

// venvHome is the folder of the Python that a virtual environment was made from.
func venvHome(prefix string) string {
	b, err := os.ReadFile(filepath.Join(prefix, "pyvenv.cfg"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, "="); ok && strings.TrimSpace(k) == "home" {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// readShebang returns the words of a script's first line after #!, none of another file's,
// and the next lines of its first 1024 bytes.
func readShebang(path string) (words []string, rest string) {
	f, err := os.Open(path)
	if err != nil {
		return nil, ""
	}
	defer f.Close()
	head := make([]byte, 1024)
	n, _ := f.Read(head)
	line, rest, _ := strings.Cut(string(head[:n]), "\n")
	if line, isScript := strings.CutPrefix(line, "#!"); isScript {
		words = strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' }) // to the kernel \r belongs to a word
	}
	return words, rest
}

// interpreter is the interpreter that a script's first line names; "" if it is no
// script or the interpreter is found by sh.
func interpreter(path string) string {
	words, rest := readShebang(path)
	if len(words) == 0 {
		return ""
	}
	switch filepath.Base(words[0]) {
	case "env":
		if found, err := exec.LookPath(words[len(words)-1]); err == nil {
			return found
		}
	case "sh": // installers hide a path that is too long for the kernel behind it
		if _, quoted, ok := strings.Cut(rest, "'exec' \""); ok {
			inner, _, _ := strings.Cut(quoted, "\"")
			return inner
		}
	}
	return words[0]
}

// LinkedFiles lists the regular files that symbolic links below a folder lead to: a
// checkpoint may be a folder of links. The caller checks where those files are.
func LinkedFiles(dir string) (files []string) {
	filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return nil
		}
		to := resolve(p)
		if st, err := os.Lstat(to); err == nil && st.Mode().IsRegular() {
			files = append(files, to)
		}
		return nil
	})
	return files
}

// scriptTypes are the files of programs that load other files beside them.
var scriptTypes = []string{".py", ".pyz", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".lua", ".r", ".jl", ".sh", ".bash", ".php"}

// systemFolders hold what is of no script's business; none of them is a script's folder.
var systemFolders = []string{
	"/", "/bin", "/boot", "/dev", "/etc", "/home", "/media", "/mnt", "/proc", "/root", "/run", "/sbin", "/sys", "/tmp",
	"/usr", "/var", "/var/lib", "/var/tmp",
}

// ScriptFolders lists the folders of the scripts that arguments name by absolute paths: an
// interpreter looks there for what a script imports. For a link that is also the folder of
// what it leads to.
func ScriptFolders(args []string) (folders []string) {
	for _, path := range NamedPaths(args, nil) {
		st, err := os.Stat(path)
		if err != nil || !st.Mode().IsRegular() || !slices.Contains(scriptTypes, strings.ToLower(filepath.Ext(path))) {
			continue
		}
		for _, dir := range []string{filepath.Dir(path), filepath.Dir(resolve(path))} {
			if !slices.Contains(systemFolders, dir) && !slices.Contains(systemFolders, resolve(dir)) && !slices.Contains(folders, dir) {
				folders = append(folders, dir)
			}
		}
	}
	return folders
}

// NamedPaths lists the absolute paths that a model file's arguments and variables name.
func NamedPaths(args []string, env map[string]string) (paths []string) {
	add := func(text string) {
		for part := range strings.SplitSeq(text, ":") {
			if filepath.IsAbs(part) && len(part) > 1 {
				paths = append(paths, filepath.Clean(part))
			}
		}
	}
	for _, a := range args {
		_, value, joined := strings.Cut(a, "=")
		add(a)
		if joined {
			add(value)
		}
	}
	for _, v := range env {
		add(v)
	}
	return paths
}

// resolve follows symbolic links; a path that does not exist stays.
func resolve(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return path
}
