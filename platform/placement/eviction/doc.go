// Package eviction computes a score for an idle replica by one of four Policies (lru, lfu, gdsf,
// next-use) from its last use, frequency, reload time and size, and predicted next use; its caller
// evicts the one with the lowest score first. A score holds until a time that comes with it, so
// that ordered lists stay in order.
package eviction
