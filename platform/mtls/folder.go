package mtls

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// The files of a Folder.
const (
	RootFile = "ca.crt"
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
)

// Folder is an identity in files, which are read again when it is asked for: a
// Secret's volume changes while its pod lives. Where they do not fit together, as in
// the moment of a change, the last that did is kept.
type Folder struct {
	dir string

	mu   sync.Mutex
	read [3]string
	id   *Identity
}

// Open reads a folder.
func Open(dir string) (*Folder, error) {
	f := &Folder{dir: dir}
	_, err := f.Identity()
	return f, err
}

// Identity is the newest.
func (f *Folder) Identity() (*Identity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var parts [3]string
	for i, name := range []string{RootFile, CertFile, KeyFile} {
		b, err := os.ReadFile(filepath.Join(f.dir, name))
		if err != nil {
			return f.last(err)
		}
		parts[i] = string(b)
	}
	if f.id != nil && parts == f.read {
		return f.id, nil
	}
	id, err := Read([]byte(parts[0]), Leaf{[]byte(parts[1]), []byte(parts[2])})
	if err != nil {
		return f.last(fmt.Errorf("%s: %w", f.dir, err))
	}
	f.id, f.read = id, parts
	return id, nil
}

func (f *Folder) last(err error) (*Identity, error) {
	if f.id != nil {
		return f.id, nil
	}
	return nil, fmt.Errorf("certificates: %w", err)
}
