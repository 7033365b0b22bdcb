package functions

import "slices"

// ConvertAll returns convert's result for each element of a list.
func ConvertAll[T, U any](list []T, convert func(T) U) []U {
	out := make([]U, len(list))
	for i, v := range list {
		out[i] = convert(v)
	}
	return out
}

// Filter returns the elements of a list that keep accepts.
func Filter[T any](list []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), func(v T) bool { return !keep(v) })
}

// SetOf returns the set of key's results for the elements of a list.
func SetOf[T any, K comparable](list []T, key func(T) K) map[K]bool {
	set := make(map[K]bool, len(list))
	for _, v := range list {
		set[key(v)] = true
	}
	return set
}
