package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/thaw-dev/thaw/loader/source"
)

// A journal lies beside a part and says which of its blocks were written and
// what their checksum was. Appended to, never rewritten:
//
//	head    "thawj3\n\x00" · identity of the file (32) · block size (8) · crc32c of the above (4)
//	record  block number (4) · bytes of it (4) · their Sum (8) · crc32c of the above (4)
//
// A block may have several records, the last one holds: what had come of it, in
// order from its front, and at last the whole. So a crash costs a megabyte of
// every range in flight, not a block.
//
// A record cut short by a crash fails its checksum, and it and what follows
// count as not written.
const (
	journalMagic = "thawj3\n\x00"
	headSize     = 8 + 32 + 8 + 4
	recordSize   = 4 + 4 + 8 + 4
)

func crc32c(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }

// versionID names a file and its version: a part of another version is not
// worth its blocks.
func versionID(f source.File) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%q %d %q %x %s", f.Name, f.Size, f.Version, f.MD5, f.SHA256))
}

// partName is what a file is called under parts: the names of a listing do not
// become names on disk before they are published.
func partName(f source.File) string {
	id := versionID(f)
	return hex.EncodeToString(id[:12])
}

func journalHead(id [32]byte, block int64) []byte {
	b := make([]byte, 0, headSize)
	b = append(b, journalMagic...)
	b = append(b, id[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(block))
	return binary.LittleEndian.AppendUint32(b, crc32c(b))
}

// blockRecord says what came of a block.
type blockRecord struct {
	bytes int64
	sum   uint64
}

func journalRecord(block int, r blockRecord) []byte {
	b := make([]byte, 0, recordSize)
	b = binary.LittleEndian.AppendUint32(b, uint32(block))
	b = binary.LittleEndian.AppendUint32(b, uint32(r.bytes))
	b = binary.LittleEndian.AppendUint64(b, r.sum)
	return binary.LittleEndian.AppendUint32(b, crc32c(b))
}

// openJournal opens or makes the journal at path and returns the blocks it
// knows. It is positioned after the last good record; what came after is cut
// off. A journal of another file or block size starts empty.
func openJournal(path string, id [32]byte, block int64, blocks int) (*os.File, map[int]blockRecord, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	sums, end, err := readJournal(f, id, block, blocks)
	if err == nil {
		if end == 0 {
			head := journalHead(id, block)
			if err = f.Truncate(0); err == nil {
				_, err = f.WriteAt(head, 0)
			}
			end = headSize
		} else {
			err = f.Truncate(end)
		}
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, sums, nil
}

// readJournal returns what a journal says and where its good part ends; 0 when
// its head is not the one asked for.
func readJournal(r io.ReaderAt, id [32]byte, block int64, blocks int) (map[int]blockRecord, int64, error) {
	head := make([]byte, headSize)
	if _, err := r.ReadAt(head, 0); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, 0, nil
		}
		return nil, 0, err
	}
	if string(head) != string(journalHead(id, block)) {
		return nil, 0, nil
	}
	sums := make(map[int]blockRecord)
	end := int64(headSize)
	var rec [recordSize]byte
	for {
		_, err := r.ReadAt(rec[:], end)
		if errors.Is(err, io.EOF) {
			return sums, end, nil
		}
		if err != nil {
			return nil, 0, err
		}
		n := int(binary.LittleEndian.Uint32(rec[:]))
		if crc32c(rec[:recordSize-4]) != binary.LittleEndian.Uint32(rec[recordSize-4:]) || n >= blocks {
			return sums, end, nil
		}
		sums[n] = blockRecord{int64(binary.LittleEndian.Uint32(rec[4:])), binary.LittleEndian.Uint64(rec[8:])}
		end += recordSize
	}
}
