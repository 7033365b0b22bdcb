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
	// A call measures at most maxWindows windows of windowSize bytes.
	windowSize = 1 << 20
	maxWindows = 128
	// adviseStep is asked for at once when reading ahead: between two, the caller's
	// end is looked at.
	adviseStep = 8 << 20
)

// Resident returns how many bytes of files are in the page cache; ok is false if the
// system cannot tell. Files that cannot be opened count 0.
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
		have, sampled, ok := sampleResident(f, n, whole)
		if !ok {
			return 0, false
		}
		if sampled > 0 {
			bytes += int64(float64(have) / float64(sampled) * float64(f.Size))
		}
	}
	return min(bytes, total), true
}

// sampleResident measures n windows of a file, or all of it: have of looked bytes are
// in memory.
func sampleResident(f File, n int64, whole bool) (have, sampled int64, ok bool) {
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
		sampled += at.len
	}
	return have, sampled, true
}

type extent struct{ off, len int64 }

// sampleExtents spreads n windows evenly over size bytes, on page boundaries; one
// extent if they cover it.
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
// limit bytes were requested; it returns that number. It returns before they are all
// read, but is never further ahead than the disk's queue. On other systems it does
// nothing.
func ReadAhead(ctx context.Context, files []File, limit int64) (requested int64) {
	for _, f := range files {
		if ctx.Err() != nil || requested >= limit {
			return requested
		}
		n, ok := readAheadFile(ctx, f, limit-requested)
		if requested += n; !ok {
			return requested
		}
	}
	return requested
}

func readAheadFile(ctx context.Context, f File, limit int64) (requested int64, ok bool) {
	file, err := os.Open(f.Path)
	if err != nil {
		return 0, true // its reader reports the error
	}
	defer file.Close()
	for off := int64(0); off < f.Size && requested < limit && ctx.Err() == nil; off += adviseStep {
		n := min(adviseStep, f.Size-off, limit-requested)
		if err := adviseWillNeed(file, off, n); err != nil {
			return requested, false
		}
		requested += n
	}
	return requested, true
}

// SpareMemory returns how many bytes may be read ahead without evicting what is in
// use: half of the available memory; 0 if unknown.
func SpareMemory() int64 {
	m, _ := hostinfo.ReadMemory()
	return m.Available / 2
}
