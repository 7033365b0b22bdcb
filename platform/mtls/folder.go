package mtls

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

const (
	RootFile = "ca.crt"
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
)

// Folder is an identity in files, which each Identity call reads again: a Secret's
// volume changes while its pod lives. If the files do not match, as in the middle of a
// change, the last valid identity is kept.
type Folder struct {
	dir string

	mu   sync.Mutex
	read [3]string
	id   *Identity
}

// Open reads a folder, which must hold a valid identity.
func Open(dir string) (*Folder, error) {
	f := &Folder{dir: dir}
	_, err := f.Identity()
	return f, err
}

// Identity returns the files' identity, or the last valid one.
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
