package loader

import (
	"crypto/md5"
	"crypto/sha256"
	"errors"
	"hash"
	"os"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"

	"github.com/zeebo/blake3"
	"github.com/zeebo/xxh3"
)

// Ceilings are the limits of the machine at that time, in bytes per second. 0 means not
// measurable here.
type Ceilings struct {
	Link    float64 `json:"link"`           // loopback, received and discarded
	Copy    float64 `json:"link_and_cache"` // received and written to the page cache
	Past    float64 `json:"link_and_disk"`  // received and written with O_DIRECT
	Direct  float64 `json:"disk_direct"`    // O_DIRECT
	Cached  float64 `json:"disk_cached"`    // through the page cache, until it is durable
	XXH3    float64 `json:"xxh3"`           // on one core
	BLAKE3  float64 `json:"blake3"`
	SHA256  float64 `json:"sha256"`
	MD5     float64 `json:"md5"`
	CPULink float64 `json:"link_cpu_seconds_per_gib"`
	CPUCopy float64 `json:"link_and_cache_cpu_seconds_per_gib"`
	CPUPast float64 `json:"link_and_disk_cpu_seconds_per_gib"`
}

const (
	diskBlock  = 8 << 20
	diskAtOnce = 4
)

// aligned returns a buffer aligned for O_DIRECT.
func aligned(n int) []byte {
	b := make([]byte, n+4096)
	off := 4096 - int(uintptr(unsafe.Pointer(&b[0]))&4095)
	return b[off : off+n]
}

// diskRate writes size bytes to a new file in dir and returns the bytes per second until
// they are durable.
func diskRate(dir string, size int64, direct bool) (rate float64, err error) {
	name := filepath.Join(dir, "ceiling")
	open := os.Create
	if direct {
		open = createDirect
	}
	f, err := open(name)
	if err != nil {
		return 0, err
	}
	defer func() {
		f.Close()
		os.Remove(name)
	}()
	began := time.Now()
	if err := allocate(f, size); err != nil {
		return 0, err
	}
	left, fail := make(chan int64, size/diskBlock), make(chan error, diskAtOnce)
	for off := int64(0); off+diskBlock <= size; off += diskBlock {
		left <- off
	}
	close(left)
	for range diskAtOnce {
		go func() {
			buf := aligned(diskBlock)
			for i := range buf {
				buf[i] = byte(i * 7)
			}
			var err error
			for off := range left {
				if err == nil {
					_, err = f.WriteAt(buf, off)
				}
			}
			fail <- err
		}()
	}
	for range diskAtOnce {
		err = errors.Join(err, <-fail)
	}
	if err == nil {
		err = f.Sync()
	}
	return float64(size/diskBlock*diskBlock) / time.Since(began).Seconds(), err
}

// hashRate returns a checksum's rate on one core, in bytes per second of CPU time, which
// other processes do not affect.
func hashRate(h func([]byte)) float64 {
	buf := make([]byte, diskBlock)
	began, before, n := time.Now(), processor(), 0
	for time.Since(began) < 200*time.Millisecond || n < 4*len(buf) {
		h(buf)
		n += len(buf)
	}
	return float64(n) / max(1e-6, (processor()-before).Seconds())
}

// processor returns the CPU time of this process.
func processor() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// Machine measures disk and checksums with a file of size bytes in dir. It runs in its
// own process because it fills memory.
func Machine(dir string, size int64) (c Ceilings, err error) {
	c.Direct, err = diskRate(dir, size, true)
	if err != nil { // a file system without O_DIRECT, such as tmpfs
		c.Direct = 0
	}
	if c.Cached, err = diskRate(dir, size, false); err != nil {
		return c, err
	}
	of := func(h hash.Hash) float64 { return hashRate(func(b []byte) { h.Write(b) }) }
	c.XXH3 = hashRate(func(b []byte) { xxh3.Hash(b) })
	c.BLAKE3 = of(blake3.New())
	c.SHA256, c.MD5 = of(sha256.New()), of(md5.New())
	return c, nil
}
