// Package kernel computes dot products of weight rows (BF16, F32) with activations, and the
// weighted sums of attention, on the CPU, in Go and in AVX2 and AVX-512 assembly, all with the
// same bits.
//
// Every loop is defined in Go; amd64 has assembly for AVX2 and, for several rows and
// vectors, AVX-512. All give the same bits, because the order of additions is part of
// the definition:
//
//   - sixteen lanes, lane j takes the elements j, j+16, j+32, …;
//   - a product is rounded before it is added (no fused multiply-add, which the
//     Go body could not repeat);
//   - lane j and lane j+8 are added first, then the eight sums are added as
//     ((0+1)+(2+3))+((4+5)+(6+7));
//   - elements beyond the last full sixteen follow one by one.
//
// The result for a vector does not depend on the other vectors of the pass, so a
// sequence is the same alone and in a batch, on every machine.
package kernel
