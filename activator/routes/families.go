package routes

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// Families are the beginnings of recent prompts of each team, and features of whole bodies. Its
// methods may be called concurrently and take no lock.
type Families struct {
	seed     maphash.Seed
	seen     []familyCell
	readings readings
}

// familyCell holds a hash in its upper 48 bits and the minute when it was seen in the
// lower 16.
type familyCell struct{ v atomic.Uint64 }

const (
	familyCells  = 1 << 14
	familyMemory = 10 // minutes that a beginning is recent
)

// NewFamilies returns an empty table. Its size is fixed: a newer prompt may replace
// another, which is then not recognised.
func NewFamilies() *Families {
	return &Families{seed: maphash.MakeSeed(), seen: make([]familyCell, familyCells)}
}

// look reports whether the team has had a prompt of this family recently; with note it is
// noted.
func (f *Families) look(team, family string, now time.Time, note bool) bool {
	var h maphash.Hash
	h.SetSeed(f.seed)
	h.WriteString(team)
	h.WriteByte(0)
	h.WriteString(family)
	sum := h.Sum64()
	minute := uint64(now.Unix()/60) & 0xffff
	cell := &f.seen[sum%familyCells]
	var before uint64
	if next := sum&^0xffff | minute; note {
		before = cell.v.Swap(next)
	} else {
		before = cell.v.Load()
	}
	return before != 0 && before&^0xffff == sum&^0xffff && (minute-before)&0xffff <= familyMemory
}
