// Package study runs one trace under several policies and sizes of a fleet, and
// tells what came of it: the numbers beside each other, how many GPUs a goal
// needs, and a page with pictures that needs nothing but itself.
//
// A policy is a word: who is evicted first (lru, lfu, gdsf, next-use), and after
// a + what else differs: learned keep-alive, prewarm, one idle time for all
// (idle=10m), or that nobody is left alone for having been missed (bare). clairvoyant is no policy anybody can run: it is next-use told the
// truth by the trace, and stands beside the others as a bound of what knowing
// the future would bring.
//
// Every run is one of platform/simulate with the same trace and seed; nothing is
// decided here.
package study
