package loader

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// Peers are other nodes that may have or fetch the same files.
type Peers interface {
	// Join is called when a staging has its plan. key is equal on all nodes for the
	// same versions of the same files of a location. It waits at most 250 ms for
	// answers; nil if there are no other nodes. ctx is the staging's.
	Join(ctx context.Context, key string, files []source.File) Swarm
}

// Swarm is the nodes that stage or hold one plan. Its methods are safe for concurrent
// use.
type Swarm interface {
	// Owns reports whether this node is to fetch a block from the source. It is called
	// at every search for a block, because ownership changes as nodes come and go, and
	// must not block.
	Owns(b Block) bool
	// Claim is called when this node begins to fetch a block from the source.
	Claim(b Block)
	// Fetch reads a block from another node: a body of exactly b.Length bytes and
	// their checksum (store.Sum). It may wait for a block that the other node is
	// fetching. ok is false if the source should be asked instead.
	Fetch(ctx context.Context, b Block) (body io.ReadCloser, sum uint64, ok bool)
	// Exclude is called when bytes of a file that other nodes sent are not the source's:
	// the nodes that sent blocks of it are asked for nothing more. It returns the blocks
	// that they have sent, by file; these are fetched again only from the source.
	Exclude(file string) (sent map[string][]int)
	// Leave is called once, at the end of the staging. Other nodes may still read its
	// blocks (Loader.ReadBlock).
	Leave()
}

type Block struct {
	File           source.File
	Index          int
	Offset, Length int64
}

// BlockRead is a range of a file that another node reads.
type BlockRead struct {
	*io.SectionReader
	// File is the open file, for sendfile; Offset is where the range begins.
	File   *os.File
	Offset int64
	// Sum is the checksum of the range (store.Sum).
	Sum uint64

	summed bool // Sum is known already
	lease  *store.Lease
}

func (r *BlockRead) Close() error {
	defer r.lease.Release()
	return r.File.Close()
}

// ReadBlock opens a range of a file for another node: of a published checkpoint, or of
// a running staging, whose blocks are then fetched first and awaited until ctx ends.
// planKey is the key of Peers.Join. An error of kind Missing means that this node
// neither has nor fetches it.
func (l *Loader) ReadBlock(ctx context.Context, planKey, name string, off, n int64) (*BlockRead, error) {
	read, err := l.openRange(ctx, planKey, name, off, n)
	if err != nil {
		return nil, err
	}
	if read.summed {
		return read, nil
	}
	if read.Sum, err = checksumOf(read.SectionReader); err != nil {
		return nil, errors.Join(err, read.Close())
	}
	_, err = read.Seek(0, io.SeekStart)
	return read, err
}

func (l *Loader) openRange(ctx context.Context, planKey, name string, off, n int64) (*BlockRead, error) {
	missing := &source.Error{Kind: source.Missing, File: name, Detail: "is neither stored nor being fetched"}
	if n <= 0 || off < 0 || l.o.Store == nil {
		return nil, missing
	}
	a := l.arrivalOfPlan(planKey)
	if a == nil {
		return l.openPublished(planKey, name, off, n, missing)
	}
	p := a.plan.parts[name]
	if p == nil || off+n > p.File.Size {
		return nil, missing
	}
	for i := off / l.o.Block; i <= (off+n-1)/l.o.Block; i++ {
		if err := a.await(ctx, p, int(i), false); err != nil {
			return nil, err
		}
	}
	file, err := a.find(ctx, name)
	if err != nil {
		return nil, err
	}
	store.ReadAhead(file, off, n)
	read := &BlockRead{SectionReader: io.NewSectionReader(file, off, n), File: file, Offset: off}
	// The checksum of a whole block was computed when it arrived.
	i := int(off / l.o.Block)
	if from, complete := p.Range(i); from == off && complete == n {
		read.Sum, read.summed = p.BlockSum(i)
	}
	return read, nil
}

func (l *Loader) openPublished(planKey, name string, off, n int64, missing error) (*BlockRead, error) {
	e, lease, err := l.o.Store.Acquire(l.o.Store.Plans.DigestOfPlan(planKey))
	if err != nil {
		return nil, missing
	}
	if !slices.ContainsFunc(e.Files, func(f File) bool { return f.Name == name && off+n <= f.Size }) {
		lease.Release()
		return nil, missing
	}
	file, err := e.Open(name)
	if err != nil {
		lease.Release()
		return nil, err
	}
	return &BlockRead{SectionReader: io.NewSectionReader(file, off, n), File: file, Offset: off, lease: lease}, nil
}

// HasPlan reports whether a plan is published here; planKey is the key of Peers.Join.
func (l *Loader) HasPlan(planKey string) bool {
	return l.o.Store != nil && l.o.Store.Plans.DigestOfPlan(planKey) != ""
}

// arrivalOfPlan returns the files of a running staging; nil if there is none of the plan.
func (l *Loader) arrivalOfPlan(planKey string) *Arrival {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, j := range l.jobs {
		j.mu.Lock()
		plan := j.plan
		j.mu.Unlock()
		if plan != nil && plan.key == planKey {
			return &Arrival{job: j, plan: plan}
		}
	}
	return nil
}

func checksumOf(r io.Reader) (uint64, error) {
	var sum store.Sum
	if _, err := io.CopyBuffer(&sum, r, make([]byte, pieceSize)); err != nil {
		return 0, &source.Error{Kind: source.Broken, Detail: "cannot be read back", Err: err}
	}
	return sum.Sum64(), nil
}
