package pagecache

import (
	"context"
	"os"

	"github.com/thaw-dev/thaw/runtime/hostinfo"
)

// File to look at: a path and its size in bytes.
type File struct {
	Path string
	Size int64
}

const (
	// windowSize is looked at whole, and windows of them at most per call.
	windowSize = 1 << 20
	maxWindows = 128
	// adviseStep is asked for at once when reading ahead: between two, the caller's
	// end is looked at.
	adviseStep = 8 << 20
)

// Resident is how many bytes of files are in the page cache; ok is false where
// the system does not say. Files that cannot be opened have none.
func Resident(files []File) (bytes int64, ok bool) {
	var total int64
	for _, f := range files {
		total += f.Size
	}
	if total <= 0 {
		return 0, supported
	}
	whole := total <= maxWindows*windowSize
	for _, f := range files {
		n := int64(maxWindows)
		if !whole {
			// By its share of the bytes; small files count less than a window.
			n = f.Size * maxWindows / total
		}
		if f.Size <= 0 || n == 0 {
			continue
		}
		have, looked, ok := sampleResident(f, n, whole)
		if !ok {
			return 0, false
		}
		if looked > 0 {
			bytes += int64(float64(have) / float64(looked) * float64(f.Size))
		}
	}
	return min(bytes, total), true
}

// sampleResident looks at n windows of a file, or all of it: have of looked bytes are
// in memory.
func sampleResident(f File, n int64, whole bool) (have, looked int64, ok bool) {
	file, err := os.Open(f.Path)
	if err != nil {
		return 0, 0, true
	}
	defer file.Close()
	for _, at := range sampleExtents(f.Size, n, whole) {
		got, err := measureCached(file, at.off, at.len)
		if err != nil {
			return 0, 0, false
		}
		have += min(got, at.len)
		looked += at.len
	}
	return have, looked, true
}

type extent struct{ off, len int64 }

// sampleExtents lays n windows evenly over size bytes, beginning on page boundaries;
// all of it in one piece where that is no more.
func sampleExtents(size, n int64, whole bool) []extent {
	if whole || n*windowSize >= size {
		return []extent{{0, size}}
	}
	out := make([]extent, 0, n)
	gap := size / n
	for i := range n {
		off := (i*gap + (gap-windowSize)/2) &^ (1<<16 - 1)
		out = append(out, extent{off, min(windowSize, size-off)})
	}
	return out
}

// ReadAhead has the kernel read files into memory, in their order, until ctx ends or
// limit bytes were asked for; it returns how many were. It returns long before
// they are all there, but never runs further ahead than the disk's queue. Where
// the system takes no such advice it does nothing.
func ReadAhead(ctx context.Context, files []File, limit int64) (asked int64) {
	for _, f := range files {
		if ctx.Err() != nil || asked >= limit {
			return asked
		}
		n, ok := readAheadFile(ctx, f, limit-asked)
		if asked += n; !ok {
			return asked
		}
	}
	return asked
}

func readAheadFile(ctx context.Context, f File, limit int64) (asked int64, ok bool) {
	file, err := os.Open(f.Path)
	if err != nil {
		return 0, true // its reader will say why
	}
	defer file.Close()
	for off := int64(0); off < f.Size && asked < limit && ctx.Err() == nil; off += adviseStep {
		n := min(adviseStep, f.Size-off, limit-asked)
		if err := adviseWillNeed(file, off, n); err != nil {
			return asked, false
		}
		asked += n
	}
	return asked, true
}

// SpareMemory is how many bytes may be read ahead now without pushing out what is
// used: half of what memory has available. 0 where the system does not say.
func SpareMemory() int64 {
	m, _ := hostinfo.ReadMemory()
	return m.Available / 2
}
