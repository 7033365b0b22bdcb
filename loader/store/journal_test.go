package store

import (
	"bytes"
	"testing"
)

// No journal yields blocks that the file does not have, or more bytes than it holds.
func FuzzJournal(f *testing.F) {
	id := [32]byte{1, 2, 3}
	good := append(journalHead(id, 1000), journalRecord(0, blockRecord{1000, 7})...)
	good = append(good, journalRecord(4, blockRecord{500, 9})...)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(append(good, journalRecord(5, blockRecord{1000, 9})...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		sums, end, err := readJournal(bytes.NewReader(b), id, 1000, 5)
		if err != nil || end > int64(len(b)) {
			t.Fatalf("end %d of %d, %v", end, len(b), err)
		}
		for n := range sums {
			if n < 0 || n >= 5 {
				t.Errorf("block %d", n)
			}
		}
	})
}
