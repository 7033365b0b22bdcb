#include "textflag.h"

// Y0..Y3 hold lanes 0-7 of four sums, Y4..Y7 lanes 8-15. FOLD adds them as doc.go
// says and leaves the four results in X0.
#define FOLD \
	VADDPS Y4, Y0, Y0 \
	VADDPS Y5, Y1, Y1 \
	VADDPS Y6, Y2, Y2 \
	VADDPS Y7, Y3, Y3 \
	VHADDPS Y1, Y0, Y0 \
	VHADDPS Y3, Y2, Y2 \
	VHADDPS Y2, Y0, Y0 \
	VEXTRACTF128 $1, Y0, X1 \
	VADDPS X1, X0, X0

#define CLEAR \
	VXORPS Y0, Y0, Y0 \
	VXORPS Y1, Y1, Y1 \
	VXORPS Y2, Y2, Y2 \
	VXORPS Y3, Y3, Y3 \
	VXORPS Y4, Y4, Y4 \
	VXORPS Y5, Y5, Y5 \
	VXORPS Y6, Y6, Y6 \
	VXORPS Y7, Y7, Y7

// func oneRowBF16AVX2(o *[4]float32, w *uint16, x *float32, stride, n int)
TEXT ·oneRowBF16AVX2(SB), NOSPLIT, $0-40
	MOVQ o+0(FP), BX
	MOVQ w+8(FP), SI
	MOVQ x+16(FP), DI
	MOVQ stride+24(FP), DX
	MOVQ n+32(FP), CX
	LEAQ (DI)(DX*1), R8
	LEAQ (DI)(DX*2), R9
	LEAQ (R8)(DX*2), R10
	CLEAR
	SHRQ $4, CX
	XORQ AX, AX

onerow:
	PREFETCHT0 2048(SI)
	VPMOVZXWD (SI), Y8
	VPMOVZXWD 16(SI), Y9
	VPSLLD    $16, Y8, Y8
	VPSLLD    $16, Y9, Y9
	VMULPS    (DI)(AX*1), Y8, Y10
	VMULPS    (R8)(AX*1), Y8, Y11
	VMULPS    (R9)(AX*1), Y8, Y12
	VMULPS    (R10)(AX*1), Y8, Y13
	VADDPS    Y10, Y0, Y0
	VADDPS    Y11, Y1, Y1
	VADDPS    Y12, Y2, Y2
	VADDPS    Y13, Y3, Y3
	VMULPS    32(DI)(AX*1), Y9, Y10
	VMULPS    32(R8)(AX*1), Y9, Y11
	VMULPS    32(R9)(AX*1), Y9, Y12
	VMULPS    32(R10)(AX*1), Y9, Y13
	VADDPS    Y10, Y4, Y4
	VADDPS    Y11, Y5, Y5
	VADDPS    Y12, Y6, Y6
	VADDPS    Y13, Y7, Y7
	ADDQ      $32, SI
	ADDQ      $64, AX
	DECQ      CX
	JNZ       onerow
	FOLD
	VMOVUPS   X0, (BX)
	VZEROUPPER
	RET

// Weights come from memory, so their rows are read one after another: the processor
// prefetches one long stream by itself, and four short ones side by side took up to
// three times as long. Two sums are enough to keep up with memory.
//
// func fourRowsBF16AVX2(o *[4]float32, w *uint16, stride int, x *float32, n int)
TEXT ·fourRowsBF16AVX2(SB), NOSPLIT, $0-40
	MOVQ o+0(FP), BX
	MOVQ w+8(FP), SI
	MOVQ stride+16(FP), DX
	MOVQ x+24(FP), DI
	MOVQ n+32(FP), R12
	MOVQ $4, R13
	SHRQ $4, R12

bfrowrow:
	MOVQ   SI, R8
	MOVQ   R12, CX
	XORQ   AX, AX
	VXORPS Y0, Y0, Y0
	VXORPS Y4, Y4, Y4

bfrow:
	VPMOVZXWD (R8), Y10
	VPMOVZXWD 16(R8), Y11
	VPSLLD $16, Y10, Y10
	VPSLLD $16, Y11, Y11
	VMULPS (DI)(AX*1), Y10, Y10
	VMULPS 32(DI)(AX*1), Y11, Y11
	VADDPS Y10, Y0, Y0
	VADDPS Y11, Y4, Y4
	ADDQ   $32, R8
	ADDQ   $64, AX
	DECQ   CX
	JNZ    bfrow
	VADDPS Y4, Y0, Y0
	VHADDPS Y0, Y0, Y0
	VHADDPS Y0, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPS X1, X0, X0
	VMOVSS X0, (BX)
	ADDQ   $4, BX
	ADDQ   DX, SI
	DECQ   R13
	JNZ    bfrowrow
	VZEROUPPER
	RET

// func fourWeightsF32AVX2(o *[4]float32, w *float32, stride int, x *float32, n int)
TEXT ·fourWeightsF32AVX2(SB), NOSPLIT, $0-40
	MOVQ o+0(FP), BX
	MOVQ w+8(FP), SI
	MOVQ stride+16(FP), DX
	MOVQ x+24(FP), DI
	MOVQ n+32(FP), R12
	MOVQ $4, R13
	SHRQ $4, R12

frowrow:
	MOVQ   SI, R8
	MOVQ   R12, CX
	XORQ   AX, AX
	VXORPS Y0, Y0, Y0
	VXORPS Y4, Y4, Y4

frow:
	VMOVUPS (R8), Y10
	VMOVUPS 32(R8), Y11
	VMULPS (DI)(AX*1), Y10, Y10
	VMULPS 32(DI)(AX*1), Y11, Y11
	VADDPS Y10, Y0, Y0
	VADDPS Y11, Y4, Y4
	ADDQ   $64, R8
	ADDQ   $64, AX
	DECQ   CX
	JNZ    frow
	VADDPS Y4, Y0, Y0
	VHADDPS Y0, Y0, Y0
	VHADDPS Y0, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPS X1, X0, X0
	VMOVSS X0, (BX)
	ADDQ   $4, BX
	ADDQ   DX, SI
	DECQ   R13
	JNZ    frowrow
	VZEROUPPER
	RET

// Keys and vectors come from the caches and their rows are short: side by side.
//
// func fourRowsF32AVX2(o *[4]float32, w *float32, stride int, x *float32, n int)
TEXT ·fourRowsF32AVX2(SB), NOSPLIT, $0-40
	MOVQ o+0(FP), BX
	MOVQ w+8(FP), SI
	MOVQ stride+16(FP), DX
	MOVQ x+24(FP), DI
	MOVQ n+32(FP), CX
	LEAQ (SI)(DX*1), R8
	LEAQ (SI)(DX*2), R9
	LEAQ (R8)(DX*2), R10
	CLEAR
	SHRQ $4, CX
	XORQ AX, AX

fourrowsf:
	VMOVUPS (DI)(AX*1), Y8
	VMOVUPS 32(DI)(AX*1), Y9
	VMULPS  (SI)(AX*1), Y8, Y10
	VMULPS  (R8)(AX*1), Y8, Y11
	VMULPS  (R9)(AX*1), Y8, Y12
	VMULPS  (R10)(AX*1), Y8, Y13
	VADDPS  Y10, Y0, Y0
	VADDPS  Y11, Y1, Y1
	VADDPS  Y12, Y2, Y2
	VADDPS  Y13, Y3, Y3
	VMULPS  32(SI)(AX*1), Y9, Y10
	VMULPS  32(R8)(AX*1), Y9, Y11
	VMULPS  32(R9)(AX*1), Y9, Y12
	VMULPS  32(R10)(AX*1), Y9, Y13
	VADDPS  Y10, Y4, Y4
	VADDPS  Y11, Y5, Y5
	VADDPS  Y12, Y6, Y6
	VADDPS  Y13, Y7, Y7
	ADDQ    $64, AX
	DECQ    CX
	JNZ     fourrowsf
	FOLD
	VMOVUPS X0, (BX)
	VZEROUPPER
	RET

// func axpyAVX2(y *float32, a float32, x *float32, n int)
TEXT ·axpyAVX2(SB), NOSPLIT, $0-32
	MOVQ         y+0(FP), DI
	VBROADCASTSS a+8(FP), Y0
	MOVQ         x+16(FP), SI
	MOVQ         n+24(FP), CX
	SHRQ         $3, CX

add:
	VMULPS  (SI), Y0, Y1
	VADDPS  (DI), Y1, Y1
	VMOVUPS Y1, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DI
	DECQ    CX
	JNZ     add
	VZEROUPPER
	RET
