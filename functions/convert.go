package functions

// ConvertAll returns convert's result for each element of a list.
func ConvertAll[T, U any](list []T, convert func(T) U) []U {
	out := make([]U, len(list))
	for i, v := range list {
		out[i] = convert(v)
	}
	return out
}
