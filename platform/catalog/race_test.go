//go:build race

package catalog

// raceOverhead is what the race detector adds to the allocations of one call: it pads each
// of them, and makes pools forget, so that a regular expression allocates its state anew.
// FuzzMemory's seeds hold the bound without it.
const raceOverhead = 16 << 20
