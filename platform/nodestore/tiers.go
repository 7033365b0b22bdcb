package nodestore

import (
	"context"
	"path/filepath"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/pagecache"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/runtime/hostinfo"
)

// inMemoryShare is the share of a checkpoint's bytes in the page cache from which on it
// counts as in memory: an engine then maps it without waiting for the disk.
const inMemoryShare = 0.9

func cachedFile(dir, name string, size int64) pagecache.File {
	return pagecache.File{Path: filepath.Join(dir, filepath.FromSlash(name)), Size: size}
}

// tierOf returns a checkpoint's tier and its bytes in memory; known is false if the system
// does not report them.
func tierOf(e store.Entry) (t functions.Tier, memory functions.Bytes, known bool) {
	files := functions.ConvertAll(e.Files, func(f store.File) pagecache.File { return cachedFile(e.Path, f.Name, f.Size) })
	have, known := pagecache.Resident(files)
	if known && e.Bytes > 0 && float64(have) >= inMemoryShare*float64(e.Bytes) {
		return functions.TierDRAM, functions.Bytes(have), true
	}
	return functions.TierNVMe, functions.Bytes(have), known
}

// ReadIntoMemory has the kernel read a checkpoint into the page cache, as far as memory
// is free.
func ReadIntoMemory(ctx context.Context, c *loader.Checkpoint) {
	limit := pagecache.SpareMemory()
	// Pages read by this process count towards its control group.
	if group := hostinfo.GroupLimit(); group > 0 {
		limit = min(limit, group/2)
	}
	files := functions.ConvertAll(c.Files, func(f loader.File) pagecache.File { return cachedFile(c.Path, f.Name, f.Size) })
	pagecache.ReadAhead(ctx, files, limit)
}
