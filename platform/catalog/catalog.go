package catalog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/durable"
)

// Errors of Put and Delete, beside Problems for a document that does not read.
var (
	// ErrNotFound: no such function.
	ErrNotFound = errors.New("no such function")
	// ErrConflict: the name belongs to the user's folder, which is not written.
	ErrConflict = errors.New("the name is taken")
	// ErrReadOnly: the catalog was opened without a folder for deployed models.
	ErrReadOnly = errors.New("this catalog keeps nothing")
)

// DefaultEvery is how often the folders are looked at.
const DefaultEvery = time.Second

// maxFiles bounds one folder.
const maxFiles = 50_000

// Options of a Catalog. Either folder may be empty.
type Options struct {
	Folder   string        // the user's, never written; it must exist
	Deployed string        // what Put keeps; made when it is not there
	Every    time.Duration // how often Watch looks; DefaultEvery when 0
}

// Catalog is the functions and teams of two folders. It is safe for concurrent
// use.
type Catalog struct {
	o Options

	// turn is a lock (held by filling it) for reading and writing the folders; it
	// owns files and seen.
	turn  chan struct{}
	files map[string]*file // by path: what each holds

	mu      sync.Mutex // the rest: held for moments only
	view    view
	version uint64        // counts pictures
	changed chan struct{} // closed and made anew with every new picture
	// watchers are the running Watches, each with the last edition it delivered;
	// told is closed and replaced whenever one has delivered another.
	watchers  map[*uint64]struct{}
	delivered chan struct{}
}

// file is one file as it was last read.
type file struct {
	stat     fileVersion // of the bytes that were read
	lastSeen fileVersion // of the last look, which may be newer
	docs     []Document
	problems Problems
}

// fileVersion identifies a version of a file. A missing file has none.
type fileVersion struct {
	size int64
	time time.Time
}

// view is one consistent view; it is never changed, only replaced.
type view struct {
	models   map[functions.Name]*functions.Model
	teams    map[string]*functions.Team
	from     map[string]string // Document.Name to file
	problems Problems
}

// Change is one notification of Watch. Models has new and changed models, Removed the
// names of removed ones; Problems are complete.
type Change struct {
	Models   []*functions.Model
	Removed  []functions.Name
	Problems Problems
}

// Open reads both folders once. A file that cannot be decoded is in Problems and not
// an error: the others are served. A folder that cannot be listed is an error.
func Open(o Options) (*Catalog, error) {
	if o.Every <= 0 {
		o.Every = DefaultEvery
	}
	for _, dir := range []*string{&o.Folder, &o.Deployed} {
		if *dir == "" {
			continue
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return nil, err
		}
		*dir = abs
	}
	if o.Deployed != "" {
		if err := os.MkdirAll(o.Deployed, 0o700); err != nil {
			return nil, fmt.Errorf("folder for deployed functions: %w", err)
		}
	}
	c := &Catalog{o: o, turn: make(chan struct{}, 1), files: map[string]*file{}, changed: make(chan struct{}), watchers: map[*uint64]struct{}{}, delivered: make(chan struct{})}
	for _, dir := range c.folders() {
		if _, err := listFiles(dir); err != nil {
			return nil, fmt.Errorf("folder of functions: %w", err)
		}
	}
	c.Reload()
	return c, nil
}

func (c *Catalog) folders() []string {
	var dirs []string
	for _, d := range []string{c.o.Folder, c.o.Deployed} {
		if d != "" {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

// Models are all models, by name.
func (c *Catalog) Models() []*functions.Model {
	p := c.now()
	return sortedModels(p.models)
}

// Model is one, or nil. The name's adapter is looked past.
func (c *Catalog) Model(name functions.Name) *functions.Model {
	return c.now().models[name.WithoutAdapter()]
}

// Teams are all teams with a file, by name.
func (c *Catalog) Teams() []*functions.Team {
	p := c.now()
	return sortedTeams(p.teams)
}

// Problems returns the present problems of both folders.
func (c *Catalog) Problems() Problems { return slices.Clone(c.now().problems) }

func (c *Catalog) now() view {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view
}

// Watch calls tell with everything, and then with every change, until ctx ends;
// calls do not overlap. It returns ctx's error.
func (c *Catalog) Watch(ctx context.Context, notify func(Change)) error {
	tick := time.NewTicker(c.o.Every)
	defer tick.Stop()
	var delivered view
	first := true
	version := new(uint64)
	c.mu.Lock()
	c.watchers[version] = struct{}{}
	c.mu.Unlock()
	defer c.ack(func() { delete(c.watchers, version) })
	for {
		c.mu.Lock()
		p, changed, now := c.view, c.changed, c.version
		c.mu.Unlock()
		if change, any := filesDiffer(delivered, p); any || first {
			notify(change)
		}
		delivered, first = p, false
		c.ack(func() { *version = now })
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-tick.C:
			c.Scan()
		}
	}
}

// ack changes the state of a watcher and wakes settled.
func (c *Catalog) ack(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.delivered)
	c.delivered = make(chan struct{})
}

// deliverTimeout bounds how long Put and Delete wait for watchers.
const deliverTimeout = 2 * time.Second

// waitDelivered returns when every watcher has delivered the present state, so that a model
// is served when its deployment is answered; or after tellFor.
func (c *Catalog) waitDelivered() {
	c.mu.Lock()
	want := c.version
	c.mu.Unlock()
	bound := time.NewTimer(deliverTimeout)
	defer bound.Stop()
	for {
		c.mu.Lock()
		pending, delivered := false, c.delivered
		for e := range c.watchers {
			pending = pending || *e < want
		}
		c.mu.Unlock()
		if !pending {
			return
		}
		select {
		case <-delivered:
		case <-bound.C:
			return
		}
	}
}

// Scan looks at the folders as Watch does every second: what has changed since
// the last look is read at the next one that finds it unchanged.
func (c *Catalog) Scan() { c.scan(true) }

// Reload reads what has changed at once.
func (c *Catalog) Reload() { c.scan(false) }

func (c *Catalog) scan(wait bool) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	var broken Problems
	for _, dir := range c.folders() {
		found, err := listFiles(dir)
		if err != nil {
			// What was there stays: a mount that blinks takes no function away.
			broken = append(broken, Problem{File: dir, Message: fmt.Sprintf("cannot be listed; its functions stay as they were: %v", err)})
			continue
		}
		for path, f := range c.files {
			if _, exists := found[path]; filepath.Dir(path) != dir || exists {
				continue
			}
			if wait && f.lastSeen != (fileVersion{}) {
				f.lastSeen = fileVersion{}
				continue
			}
			delete(c.files, path)
		}
		for path, st := range found {
			f := c.files[path]
			if f == nil {
				f = new(file)
				c.files[path] = f
			}
			still := !wait || f.lastSeen == st
			f.lastSeen = st
			if still && f.stat != st {
				f.read(path, st)
			}
		}
	}
	c.assemble(broken)
}

// listFiles gives the YAML files of a folder.
func listFiles(dir string) (map[string]fileVersion, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := map[string]fileVersion{}
	for _, e := range entries {
		name := e.Name()
		if ext := filepath.Ext(name); ext != ".yaml" && ext != ".yml" || strings.HasPrefix(name, ".") {
			continue
		}
		// Stat, not Lstat: a ConfigMap's files are links.
		info, err := os.Stat(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
			continue
		}
		st := fileVersion{size: -1}
		if err == nil {
			st = fileVersion{info.Size(), info.ModTime()}
		}
		found[filepath.Join(dir, name)] = st
		if len(found) > maxFiles {
			return nil, fmt.Errorf("%s holds more than %d files", dir, maxFiles)
		}
	}
	return found, nil
}

// read replaces the documents of f, or says why they stay.
func (f *file) read(path string, st fileVersion) {
	f.stat, f.problems = st, nil
	data, err := readFile(path)
	if err != nil {
		f.problems = Problems{{File: path, Message: "cannot be read: " + err.Error()}}
		return
	}
	docs, err := Decode(path, data)
	if problems, bad := errors.AsType[Problems](err); bad {
		f.problems = problems
		return
	}
	f.docs = docs
}

func readFile(path string) ([]byte, error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if info, err := r.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, errors.New("no regular file"))
	}
	return io.ReadAll(io.LimitReader(r, MaxFile+1))
}

// assemble makes one picture of all files and puts it in the old one's place.
// Where two files name the same thing, the one that was there first keeps it.
func (c *Catalog) assemble(problems Problems) {
	old := c.now()
	p := view{models: map[functions.Name]*functions.Model{}, teams: map[string]*functions.Team{}, from: map[string]string{}}
	definedIn := map[string]Document{}
	take := func(path string, keepers bool) {
		for _, d := range c.files[path].docs {
			name := d.Name()
			if (old.from[name] == path) != keepers {
				continue
			}
			if first, taken := definedIn[name]; taken {
				problems = append(problems, Problem{File: d.File, Line: d.Line, Path: "metadata.name",
					Message: fmt.Sprintf("%s is here and at %s; the other one counts", name, first.origin()), Hint: "rename one, or remove it"})
				continue
			}
			definedIn[name], p.from[name] = d, path
			if d.Model != nil {
				p.models[d.Model.FullName()] = d.Model
			} else {
				p.teams[d.Team.Metadata.Name] = d.Team
			}
		}
	}
	// The user's folder comes first, then names in their order.
	paths := slices.SortedFunc(maps.Keys(c.files), func(a, b string) int {
		return cmp.Or(cmp.Compare(c.rank(a), c.rank(b)), cmp.Compare(a, b))
	})
	for _, keepers := range []bool{true, false} {
		for _, path := range paths {
			take(path, keepers)
		}
	}
	for _, path := range paths {
		problems = append(problems, c.files[path].problems...)
	}
	p.problems = problems
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, any := filesDiffer(c.view, p); any || c.view.models == nil {
		c.version++
		close(c.changed)
		c.changed = make(chan struct{})
	}
	c.view = p
}

func (c *Catalog) rank(path string) int {
	if filepath.Dir(path) == c.o.Folder {
		return 0
	}
	return 1
}

// filesDiffer returns what changed from old to now. Models and teams are compared
// by pointer: a file that is not read again keeps its own.
func filesDiffer(old, now view) (Change, bool) {
	var ch Change
	for name, m := range now.models {
		if old.models[name] != m {
			ch.Models = append(ch.Models, m)
		}
	}
	for name := range old.models {
		if now.models[name] == nil {
			ch.Removed = append(ch.Removed, name)
		}
	}
	byName := func(a, b functions.Name) int { return cmp.Compare(a.String(), b.String()) }
	slices.SortFunc(ch.Models, func(a, b *functions.Model) int { return byName(a.FullName(), b.FullName()) })
	slices.SortFunc(ch.Removed, byName)
	ch.Problems = slices.Clone(now.problems)
	any := len(ch.Models) > 0 || len(ch.Removed) > 0 || !maps.Equal(old.teams, now.teams) || !slices.Equal(old.problems, now.problems)
	return ch, any
}

func sortedModels(m map[functions.Name]*functions.Model) []*functions.Model {
	return slices.SortedFunc(maps.Values(m), func(a, b *functions.Model) int {
		return cmp.Compare(a.FullName().String(), b.FullName().String())
	})
}

func sortedTeams(m map[string]*functions.Team) []*functions.Team {
	teams := make([]*functions.Team, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		teams = append(teams, m[name])
	}
	return teams
}

// Check returns what Put would do with a document, without doing it.
func (c *Catalog) Check(name functions.Name, data []byte) (m *functions.Model, created bool, err error) {
	docs, err := Decode(name.String(), data)
	if err != nil {
		return nil, false, err
	}
	if len(docs) != 1 || docs[0].Model == nil {
		return nil, false, Problems{{Message: "exactly one Model is wanted", Hint: "team files belong in the --functions folder"}}
	}
	m = docs[0].Model
	var problems Problems
	if m.FullName() != name {
		problems = append(problems, Problem{Path: "metadata.name", Message: fmt.Sprintf("the document is about %s, the path about %s", m.FullName(), name)})
	}
	problems = append(problems, relativeSource("spec.source", m.Spec.Source)...)
	for i, a := range m.Spec.Adapters {
		problems = append(problems, relativeSource(fmt.Sprintf("spec.adapters[%d].source", i), a.Source)...)
	}
	if len(problems) > 0 {
		return nil, false, problems
	}
	m.Dir, m.Origin = "", ""
	p := c.now()
	at, exists := p.from["model "+name.String()]
	if exists && at != c.path(name) {
		return nil, false, fmt.Errorf("%s: %w by %s (%s is kept for what is deployed)", name, ErrConflict, p.models[name].Origin, c.path(name))
	}
	return m, !exists, nil
}

func relativeSource(path, source string) Problems {
	if source == "" || strings.Contains(source, "://") || filepath.IsAbs(source) {
		return nil
	}
	return Problems{{Path: path, Message: "a relative source has no folder to count from here", Hint: "thaw deploy -f FILE makes it absolute"}}
}

// path is where a deployed model is kept. Labels hold no dot, so no two names
// share a file.
func (c *Catalog) path(name functions.Name) string {
	return filepath.Join(c.o.Deployed, name.Team+"."+name.Name+".yaml")
}

// Put stores one model under DATA/functions. data is
// YAML or JSON; name must be the document's own. When it returns, the file is
// whole on disk and every Watch has delivered it; so a watcher must not call it.
// Errors: Problems, ErrConflict, ErrReadOnly, or of the disk.
func (c *Catalog) Put(name functions.Name, data []byte) (created bool, err error) {
	if c.o.Deployed == "" {
		return false, ErrReadOnly
	}
	if created, err = c.put(name, data); err == nil {
		c.waitDelivered()
	}
	return created, err
}

func (c *Catalog) put(name functions.Name, data []byte) (created bool, err error) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	m, created, err := c.Check(name, data)
	if err != nil {
		return false, err
	}
	out, err := EncodeYAML(m)
	if err != nil {
		return false, err
	}
	if old, err := os.ReadFile(c.path(name)); err == nil && bytes.Equal(old, out) {
		return false, nil
	}
	if err := durable.WriteFile(c.path(name), out, 0o600); err != nil {
		return false, err
	}
	c.refresh(c.path(name))
	return created, nil
}

// Delete removes a deployed model. Errors: ErrNotFound, ErrConflict for one of
// the user's folder, or of the disk. Like Put, it returns when every Watch has delivered it.
func (c *Catalog) Delete(name functions.Name) error {
	err := c.remove(name)
	if err == nil {
		c.waitDelivered()
	}
	return err
}

func (c *Catalog) remove(name functions.Name) error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	p := c.now()
	at, exists := p.from["model "+name.String()]
	switch {
	case !exists:
		return fmt.Errorf("%s: %w", name, ErrNotFound)
	case c.o.Deployed == "" || at != c.path(name):
		return fmt.Errorf("%s: %w: it stands in %s, which belongs to you and is never written; remove it there", name, ErrConflict, p.models[name].Origin)
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := syncDir(filepath.Dir(at)); err != nil {
		return err
	}
	delete(c.files, at)
	c.assemble(nil)
	return nil
}

// refresh reads one file that was just written. The caller has the turn.
func (c *Catalog) refresh(path string) {
	f := new(file)
	if info, err := os.Stat(path); err == nil {
		f.lastSeen = fileVersion{info.Size(), info.ModTime()}
		f.read(path, f.lastSeen)
	}
	c.files[path] = f
	c.assemble(nil)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
