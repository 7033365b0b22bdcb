//go:build race

package catalog

// raceOverhead is what the race detector adds to the allocations of one call: it pads
// each of them. FuzzMemory's seeds hold the bound without it.
const raceOverhead = 4 << 20
