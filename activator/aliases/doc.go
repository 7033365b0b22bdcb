// Package aliases has the names that stand for several functions, each with a share of the
// requests.
package aliases
