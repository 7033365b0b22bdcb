// Package eviction scores what may be evicted: replicas of models, and other objects that
// are kept for their next use. A Policy gives each a score from its uses, its size and
// the time to get it back; the lowest is evicted first. A score holds until a time that
// comes with it, so that ordered lists stay in order.
package eviction
