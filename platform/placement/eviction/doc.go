// Package eviction gives idle replicas of models a score by a Policy (last use, frequency, reload
// time and size, predicted next use): the one with the lowest score is evicted first. A score holds
// until a time that comes with it, so that ordered lists stay in order.
package eviction
