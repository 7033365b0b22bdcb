package pagecache

import (
	"os"

	"golang.org/x/sys/unix"
)

const supported = true

// measureCached is how many bytes of a range are in the page cache.
func measureCached(f *os.File, off, n int64) (int64, error) {
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &st, 0)
	if err == nil {
		return int64(st.Cache) * int64(os.Getpagesize()), nil
	}
	// ENOSYS before 6.5; EPERM for files of others, and in sandboxes.
	return incore(f, off, n)
}

// incore asks with a mapping. off is a multiple of the page size.
func incore(f *os.File, off, n int64) (int64, error) {
	page := int64(os.Getpagesize())
	var have int64
	// A window at a time: whole files of a small checkpoint are larger.
	for end := off + n; off < end; off += windowSize {
		size := min(windowSize, end-off)
		b, err := unix.Mmap(int(f.Fd()), off, int(size), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return 0, err
		}
		vec := make([]byte, (size+page-1)/page)
		err = mincore(b, vec)
		if uerr := unix.Munmap(b); err == nil {
			err = uerr
		}
		if err != nil {
			return 0, err
		}
		for _, v := range vec {
			if v&1 != 0 {
				have += page
			}
		}
	}
	return have, nil
}

// adviseWillNeed blocks only while the disk's queue is full.
func adviseWillNeed(f *os.File, off, n int64) error {
	return unix.Fadvise(int(f.Fd()), off, n, unix.FADV_WILLNEED)
}
