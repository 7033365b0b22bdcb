package supervisor

import "testing"

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("7 (vllm) S 1 7 3 0 -1"))
	f.Add([]byte("7 (a) b) (c) Z 1 7 3"))
	f.Add([]byte("7 ()"))
	f.Fuzz(func(t *testing.T, b []byte) { parseStat(7, b) })
}
