// Package study runs one trace under several policies and sizes of a fleet, and
// tells what came of it: the numbers beside each other, how many GPUs a goal
// needs, and a page with pictures that needs nothing but itself.
//
// A policy is a word: who is evicted first (lru, lfu, gdsf, next-use), and after
// a + what else differs: learned keep-alive, prewarm, one idle time for all
// (idle=10m), or no protection of what was
// evicted too early (bare). clairvoyant cannot be run: it is next-use with the trace's
// own future, the bound of what knowing the future would bring.
//
// Every run is one of platform/simulate with the same trace and seed; nothing is
// decided here.
package study
