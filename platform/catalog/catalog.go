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
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/functions"
)

// Errors of Put and Delete, beside Problems for a document that does not read.
var (
	ErrNotFound = errors.New("no such function")
	// ErrConflict: the name belongs to the user's folder, which is not written.
	ErrConflict = errors.New("the name is taken")
	// ErrReadOnly: the catalog was opened without a folder for deployed models.
	ErrReadOnly = errors.New("this catalog keeps nothing")
)

// DefaultEvery is how often the folders are looked at.
const DefaultEvery = time.Second

const maxFiles = 50_000

// Options of a Catalog. Either folder may be empty. Plain is that of a [Reader].
type Options struct {
	Folder   string        // the user's, never written; it must exist
	Deployed string        // what Put keeps; made when it is not there
	Every    time.Duration // how often Watch looks; DefaultEvery when 0
	Plain    func(*url.URL) bool
	// Complete is called with each model that was read from Folder, before others get it; it
	// may fill in the model's resources, and must not call the catalog.
	Complete func(*functions.Model)
	// Given are documents in no folder, by what they come from.
	Given map[string][]byte
}

func (o *Options) reader() Reader { return Reader{Examples: true, Plain: o.Plain} }

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
	// delivered is closed and replaced whenever one has delivered another.
	watchers  map[*uint64]struct{}
	delivered chan struct{}
}

// file is one file as it was last read.
type file struct {
	stat     fileVersion // of the bytes that were read
	lastSeen fileVersion // of the last look, which may be newer
	docs     []Document
	examples exampleFiles // that were read for docs
	problems Problems
}

// fileVersion identifies a version of a file. A missing file has none. A file may be
// replaced by one of the same size and time (cp -p, rsync, tar): then its inode differs, or
// the time of its last change, which no program sets.
type fileVersion struct {
	size    int64
	time    time.Time
	inode   uint64
	changed int64 // nanoseconds
}

// versionOf is the version of the file that info is about.
func versionOf(path string, info fs.FileInfo) fileVersion {
	v := fileVersion{size: info.Size(), time: info.ModTime()}
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil {
		v.inode, v.changed = uint64(st.Ino), unix.TimespecToNsec(st.Ctim)
	}
	return v
}

// view is one consistent view; it is never changed, only replaced.
type view struct {
	docs     map[string]Document // by Document.key
	from     map[string]string   // Document.key to file
	problems Problems
	unused   map[string]Problem // the first problem of a file whose documents before it stay
}

// Change is one notification of Watch. Models has new and changed models, Removed the
// names of removed ones; Problems are complete. A change of other kinds notifies too.
type Change struct {
	Models   []*functions.Model
	Removed  []functions.Name
	Problems Problems
}

// Open reads both folders once. A file that cannot be decoded is in Problems and not
// an error: the others are served. A folder that cannot be listed is an error.
func Open(o Options) (*Catalog, error) {
	o.Every = cmp.Or(max(o.Every, 0), DefaultEvery)
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
	c := &Catalog{o: o, turn: make(chan struct{}, 1), files: map[string]*file{}, changed: make(chan struct{}),
		watchers: map[*uint64]struct{}{}, delivered: make(chan struct{})}
	for _, dir := range c.folders() {
		if _, err := listFiles(dir); err != nil {
			return nil, fmt.Errorf("folder of functions: %w", err)
		}
	}
	for from, data := range o.Given {
		f := new(file)
		if f.readData(o.reader(), from, data); len(f.problems) > 0 {
			return nil, f.problems
		}
		c.files[from] = f
	}
	c.Reload()
	return c, nil
}

func (c *Catalog) folders() []string {
	return slices.DeleteFunc([]string{c.o.Folder, c.o.Deployed}, func(d string) bool { return d == "" })
}

// ofKind returns the documents of one kind, by name: those of which value is not nil.
func ofKind[T any](c *Catalog, value func(Document) *T) (list []*T) {
	docs := c.now().docs
	for _, key := range slices.Sorted(maps.Keys(docs)) {
		if v := value(docs[key]); v != nil {
			list = append(list, v)
		}
	}
	return list
}

func (c *Catalog) Models() []*functions.Model {
	return ofKind(c, func(d Document) *functions.Model { return d.Model })
}

// Model is one, or nil. The name's adapter is looked past.
func (c *Catalog) Model(name functions.Name) *functions.Model {
	d, _ := c.Lookup(name)
	return d.Model
}

func (c *Catalog) Routers() []*functions.Router {
	return ofKind(c, func(d Document) *functions.Router { return d.Router })
}

func (c *Catalog) Remotes() []*functions.Remote {
	return ofKind(c, func(d Document) *functions.Remote { return d.Remote })
}

func (c *Catalog) Compositions() []*functions.Composition {
	return ofKind(c, func(d Document) *functions.Composition { return d.Composition })
}

// Teams are all teams with a file, by name.
func (c *Catalog) Teams() []*functions.Team {
	return ofKind(c, func(d Document) *functions.Team { return d.Team })
}

// Lookup returns the function of a name, of any kind; false if there is none. The name's
// adapter is ignored.
func (c *Catalog) Lookup(name functions.Name) (Document, bool) {
	d, ok := c.now().docs[name.WithoutAdapter().String()]
	return d, ok
}

// Documents are the functions of all kinds, by name.
func (c *Catalog) Documents() []Document {
	docs := slices.DeleteFunc(slices.Collect(maps.Values(c.now().docs)), func(d Document) bool { return d.Team != nil })
	slices.SortFunc(docs, func(a, b Document) int { return cmp.Compare(a.key(), b.key()) })
	return docs
}

func (c *Catalog) Problems() Problems { return slices.Clone(c.now().problems) }

func (c *Catalog) now() view {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view
}

// Watch calls notify with everything, and then with every change, until ctx ends;
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
	defer c.updateWatcher(func() { delete(c.watchers, version) })
	for {
		c.mu.Lock()
		p, changed, now := c.view, c.changed, c.version
		c.mu.Unlock()
		if change, any := filesDiffer(delivered, p); any || first {
			notify(change)
		}
		delivered, first = p, false
		c.updateWatcher(func() { *version = now })
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-tick.C:
			c.Scan()
		}
	}
}

// updateWatcher changes the state of a watcher and wakes waitDelivered.
func (c *Catalog) updateWatcher(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.delivered)
	c.delivered = make(chan struct{})
}

// deliverTimeout bounds how long Put and Delete wait for watchers.
const deliverTimeout = 2 * time.Second

// waitDelivered returns when every watcher has delivered the present state, so that a model
// is served when its deployment is answered; or after deliverTimeout.
func (c *Catalog) waitDelivered() {
	c.mu.Lock()
	want := c.version
	c.mu.Unlock()
	bound := time.After(deliverTimeout)
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
		case <-bound:
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
			if changed := f.examples.changed(wait); still && (changed || f.stat != st) {
				c.read(f, path, st)
			}
		}
	}
	c.assemble(broken)
}

// IsFunctions reports whether a file of a folder is read as one of functions: .yaml and .yml
// files, and .json that names thaw's API in its first KiB.
func IsFunctions(dir, name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml":
		return !strings.HasPrefix(name, ".")
	case ".json":
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			return false
		}
		f, err := os.Open(path)
		if err != nil {
			return false
		}
		defer f.Close()
		begin, _ := io.ReadAll(io.LimitReader(f, 1<<10))
		return bytes.Contains(begin, []byte(functions.APIVersion))
	}
	return false
}

func listFiles(dir string) (map[string]fileVersion, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := map[string]fileVersion{}
	for _, e := range entries {
		name := e.Name()
		if !IsFunctions(dir, name) {
			continue
		}
		// Stat, not Lstat: a ConfigMap's files are links.
		info, err := os.Stat(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
			continue
		}
		st := fileVersion{size: -1}
		if err == nil {
			st = versionOf(filepath.Join(dir, name), info)
		}
		found[filepath.Join(dir, name)] = st
		if len(found) > maxFiles {
			return nil, fmt.Errorf("%s holds more than %d files", dir, maxFiles)
		}
	}
	return found, nil
}

// read replaces the documents of f, or says why they stay.
func (c *Catalog) read(f *file, path string, st fileVersion) {
	f.stat, f.problems = st, nil
	data, err := readFile(path, MaxFile)
	if err != nil {
		f.problems = Problems{{File: path, Message: "cannot be read: " + err.Error()}}
		return
	}
	if !f.readData(c.o.reader(), path, data) || c.o.Complete == nil || c.rank(path) > 0 {
		return
	}
	for _, d := range f.docs {
		if d.Model != nil {
			c.o.Complete(d.Model)
		}
	}
}

// Reread has the next Scan read the file of a function, also when it has not changed.
func (c *Catalog) Reread(name functions.Name) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if f := c.files[c.now().from[name.WithoutAdapter().String()]]; f != nil {
		f.stat = fileVersion{}
	}
}

// readData reports whether the documents of f are those of data now.
func (f *file) readData(reader Reader, path string, data []byte) bool {
	docs, examples, err := reader.decode(path, data, MaxFile)
	f.examples = examples
	if problems, bad := errors.AsType[Problems](err); bad {
		f.problems = problems
		return false
	}
	f.docs = docs
	return true
}

// readFile reads a file up to one byte more than most.
func readFile(path string, most int64) ([]byte, error) {
	// Before it is opened: the open of a pipe would wait for a writer.
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, errors.New("no regular file"))
	}
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, most+1))
}

// assemble makes one picture of all files and puts it in the old one's place.
// Where two files name the same thing, the one that was there first keeps it.
func (c *Catalog) assemble(problems Problems) {
	old := c.now()
	p := view{docs: map[string]Document{}, from: map[string]string{}, unused: map[string]Problem{}}
	take := func(path string, keepers bool) {
		for _, d := range c.files[path].docs {
			key := d.key()
			if (old.from[key] == path) != keepers {
				continue
			}
			if first, taken := p.docs[key]; taken {
				problems = append(problems, d.duplicateOf(first, "; the other one counts", "rename one, or remove it"))
				continue
			}
			p.from[key], p.docs[key] = path, d
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
		if wrong := c.files[path].problems.Wrong(); len(wrong) > 0 {
			p.unused[path] = wrong[0]
		}
	}
	p.problems = append(problems, checkTargets(p.docs)...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, any := filesDiffer(c.view, p); any || c.view.docs == nil {
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

// filesDiffer returns what changed from old to now. Documents are compared by pointer: a
// file that is not read again keeps its own.
func filesDiffer(old, now view) (ch Change, any bool) {
	ch.Problems = slices.Clone(now.problems)
	any = !slices.Equal(old.problems, now.problems)
	for _, key := range slices.Sorted(maps.Keys(now.docs)) {
		if d := now.docs[key]; d.Value() != old.docs[key].Value() {
			any = true
			if d.Model != nil {
				ch.Models = append(ch.Models, d.Model)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(old.docs)) {
		d, is := old.docs[key], now.docs[key]
		any = any || is.Value() != d.Value()
		if d.Model != nil && is.Model == nil {
			ch.Removed = append(ch.Removed, d.FullName())
		}
	}
	return ch, any
}

// FileProblem is why the file of a function cannot be used as it is now, while its version
// before serves on; "" if it can.
func (c *Catalog) FileProblem(name functions.Name) string {
	v := c.now()
	if p, bad := v.unused[v.docs[name.WithoutAdapter().String()].File]; bad {
		return p.Error() + "; the version before it serves on"
	}
	return ""
}

// FunctionsOf are the functions that the file serves, by name.
func (c *Catalog) FunctionsOf(file string) []functions.Name {
	docs := functions.Filter(c.Documents(), func(d Document) bool { return d.File == file })
	return functions.ConvertAll(docs, Document.FullName)
}
