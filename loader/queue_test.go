package loader

import (
	"math/rand/v2"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// partsOf makes parts of so many blocks of four bytes each.
func partsOf(t *testing.T, blocks ...int) []*store.Part {
	t.Helper()
	st, err := store.Open(store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	in, err := st.Claim(store.Key("x", ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	var files []source.File
	for i, n := range blocks {
		files = append(files, source.File{Name: string(rune('a'+i)) + ".gguf", Size: int64(4 * n), Version: "1"})
	}
	if err := in.Prepare(t.Context(), "x", files, 4); err != nil {
		t.Fatal(err)
	}
	return in.Parts
}

// putBlock writes block i of four bytes.
func putBlock(t *testing.T, p *store.Part, i int) {
	t.Helper()
	w := p.Writer(i)
	w.Reset()
	at, _ := p.Range(i)
	if _, _, err := w.Write(at, []byte("1234")); err != nil {
		t.Fatal(err)
	}
}

func completeRun(t *testing.T, q *queue, r *blockRange, n int) {
	t.Helper()
	for range n {
		i, _, ok := q.position(r)
		if !ok {
			return
		}
		putBlock(t, r.part, i)
	}
}

func TestQueueOrder(t *testing.T) {
	parts := partsOf(t, 20, 3)
	q := newQueue()
	q.fill(parts)
	is := func(r *blockRange, part, next, end int) {
		t.Helper()
		if r == nil || r.part != parts[part] || r.next != next || r.end != end {
			t.Fatalf("run %+v, want blocks %d to %d of %d", r, next, end, part)
		}
	}
	// The first block of each file comes first, alone.
	a, b := q.next(8), q.next(8)
	is(a, 0, 0, 1)
	is(b, 1, 0, 1)
	long := q.next(8)
	is(long, 0, 1, 9)
	// A reader waits for a block in the middle of a run: the run ends there.
	q.prioritize(blockRef{parts[0], 5})
	if !q.hasUrgent() || long.end != 5 {
		t.Errorf("run ends at %d", long.end)
	}
	now := q.nextUrgent()
	is(now, 0, 5, 6)
	// What the run lost goes before what is new; so does what a failure left.
	completeRun(t, q, long, 2)
	q.finish(long)
	remaining := q.next(8)
	is(remaining, 0, 6, 14)
	is(q.next(8), 0, 3, 5)
	is(q.next(2), 0, 14, 16)
	is(q.next(100), 0, 16, 20)
	is(q.next(100), 1, 1, 3)
	// Nothing is left: half of the longest is taken over.
	is(q.next(100), 0, 10, 14)
	if block, ok := q.truncate(remaining); !ok || block != 6 || remaining.end != 7 {
		t.Errorf("cut at %d %v", block, ok)
	}
	is(q.next(100), 0, 7, 10)
	if q.finished() {
		t.Error("over with runs under way")
	}
}

// In every order of taking, returning, cutting and prioritizing each block is fetched
// as often as needed, and the queue ends.
func TestQueueLosesNothing(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		parts := partsOf(t, 1+rnd.IntN(60), rnd.IntN(5), 1+rnd.IntN(30))
		q := newQueue()
		others := rnd.IntN(2) == 0
		if others {
			q.isPeers = func(ref blockRef) bool { return ref.block%3 == 1 }
		}
		q.fill(parts)
		var runs []*blockRange
		var taken []blockRef
		for step := 0; !q.finished(); step++ {
			if step > 10_000 {
				t.Fatalf("seed %d: no end, %d blocks left", seed, q.remaining())
			}
			switch k := rnd.IntN(8); {
			case k < 2:
				if r := q.next(1 + rnd.IntN(9)); r != nil {
					runs = append(runs, r)
				}
			case k == 2:
				p := parts[rnd.IntN(len(parts))]
				if p.Blocks() > 0 {
					q.prioritize(blockRef{p, rnd.IntN(p.Blocks())})
				}
				if r := q.nextUrgent(); r != nil {
					runs = append(runs, r)
				}
			case k == 3:
				if ref, ok := q.nextPeer(); ok {
					taken = append(taken, ref)
				}
			case k == 4 && len(taken) > 0:
				ref := taken[0]
				taken = taken[1:]
				fetched := rnd.IntN(2) == 0
				if fetched {
					putBlock(t, ref.part, ref.block)
				}
				q.donePeer(ref, fetched)
			case k == 5 && len(runs) > 0:
				q.truncate(runs[rnd.IntN(len(runs))])
			case len(runs) > 0:
				i := rnd.IntN(len(runs))
				r := runs[i]
				completeRun(t, q, r, rnd.IntN(6))
				if _, _, more := q.position(r); !more || rnd.IntN(4) == 0 {
					q.finish(r)
					runs = append(runs[:i], runs[i+1:]...)
				}
			}
		}
		for _, p := range parts {
			for i := range p.Blocks() {
				if !p.Has(i) {
					t.Fatalf("seed %d: block %d of %s did not come", seed, i, p.File.Name)
				}
			}
		}
		if len(runs)+len(taken)+q.remaining() != 0 {
			t.Errorf("seed %d: over with %d runs, %d lent, %d left", seed, len(runs), len(taken), q.remaining())
		}
	}
}
