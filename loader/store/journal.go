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

// A journal lies beside a part and records which of its blocks were written, and their
// checksums. It is appended to, never rewritten:
//
//	head    "thawj3\n\x00" · identity of the file (32) · block size (8) · crc32c of the above (4)
//	record  block number (4) · bytes of it (4) · their Sum (8) · crc32c of the above (4)
//
// A block may have several records, each longer than the one before; the last one
// counts. So a crash costs a megabyte of every range in flight, not a block. A record
// cut short by a crash fails its checksum; it and all after it count as not written.
const (
	journalMagic = "thawj3\n\x00"
	headSize     = 8 + 32 + 8 + 4
	recordSize   = 4 + 4 + 8 + 4
)

func crc32c(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }

// versionID identifies a file in one version: a part of another version is useless.
func versionID(f source.File) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%q %d %q %x %s", f.Name, f.Size, f.Version, f.MD5, f.SHA256))
}

// partName is a file's name under parts: names of a listing are not used on disk
// before they are published.
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

// blockRecord records how much of a block has arrived.
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

// openJournal opens or makes the journal at path and returns the blocks it records. It
// is positioned after the last valid record; the rest is cut off. A journal of another
// file or block size starts empty.
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

// readJournal returns the records and where the valid part ends; 0 if the head
// differs.
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
