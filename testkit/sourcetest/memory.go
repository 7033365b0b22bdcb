package sourcetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/thaw-dev/thaw/loader/source"
)

// Memory is a source in memory. Its zero value is ready and empty.
type Memory struct {
	// Before, when set, is asked before every Plan (name empty) and Read, and
	// its error is the answer. It is set before the source is used.
	Before func(ctx context.Context, name string, offset, length int64) error

	mu    sync.Mutex // guards the fields below
	files map[string]memoryFile
	count int
}

type memoryFile struct {
	body    []byte
	version string
}

// Put stores a file of a location, as a new version.
func (m *Memory) Put(location, name string, body []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files == nil {
		m.files = make(map[string]memoryFile)
	}
	m.count++
	m.files[location+"|"+name] = memoryFile{slices.Clone(body), fmt.Sprint(m.count)}
}

// Delete removes a file.
func (m *Memory) Delete(location, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, location+"|"+name)
}

// Plan lists the files of a location by name.
func (m *Memory) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	if err := m.request(ctx, "", 0, 0); err != nil {
		return source.Plan{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var p source.Plan
	for key, f := range m.files {
		if name, ok := strings.CutPrefix(key, location+"|"); ok {
			p.Files = append(p.Files, source.File{Name: name, Size: int64(len(f.body)), Version: f.version, Ref: key})
		}
	}
	if len(p.Files) == 0 {
		return p, &source.Error{Kind: source.NotFound, Source: location, Detail: "there is nothing here"}
	}
	slices.SortFunc(p.Files, func(a, b source.File) int { return strings.Compare(a.Name, b.Name) })
	return p, nil
}

// Read returns a range of a file in the version of the plan.
func (m *Memory) Read(ctx context.Context, f source.File, offset, length int64) (io.ReadCloser, error) {
	if err := m.request(ctx, f.Name, offset, length); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	have, ok := m.files[f.Ref]
	if !ok || have.version != f.Version {
		return nil, &source.Error{Kind: source.Changed, File: f.Name, Detail: "is not what was listed"}
	}
	if offset < 0 || length < 0 || offset+length > int64(len(have.body)) {
		return nil, &source.Error{Kind: source.Malformed, File: f.Name, Detail: "has no such range"}
	}
	return io.NopCloser(bytes.NewReader(have.body[offset : offset+length])), nil
}

func (m *Memory) request(ctx context.Context, name string, offset, length int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if m.Before == nil {
		return nil
	}
	return m.Before(ctx, name, offset, length)
}
