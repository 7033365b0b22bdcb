// Package kernel holds the few loops in which the engine spends its time: dot
// products of weight rows with activations, and the weighted sums of attention.
//
// Every loop has one definition, written in Go, and on amd64 a second body in
// assembly, for AVX2, the loop for several rows and vectors also one for AVX-512
// (package cpu says which runs). All give the same bits, because the order of every
// addition is part of the definition:
//
//   - sixteen lanes, lane j takes the elements j, j+16, j+32, …;
//   - a product is rounded before it is added (no fused multiply-add, which the
//     Go body could not repeat);
//   - lane j and lane j+8 are added first, then the eight sums are added as
//     ((0+1)+(2+3))+((4+5)+(6+7));
//   - elements beyond the last full sixteen follow one by one.
//
// The result for one vector does not depend on which other vectors share the
// pass, so a sequence says the same alone and in a batch, on every machine.
package kernel
