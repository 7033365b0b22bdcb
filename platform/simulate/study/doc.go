// Package study runs package simulate with one trace under several policies (of eviction,
// keep-alive and starts ahead) and fleet sizes, and returns the results, the number of GPUs that a
// goal for the p99 time to first token needs, and the text of an HTML page with charts; it writes
// no file.
//
// A policy is a word: the eviction policy (lru, lfu, gdsf, next-use), and after a + its
// options: learned (keep-alive from history), prewarm, idle=10m (one idle time for all),
// or bare (no protection of functions that were evicted too early). clairvoyant exists
// only in simulation: next-use with the trace's own future, the bound for any forecast.
//
// Every run is one of platform/simulate with the same trace and seed; this package
// decides nothing.
package study
