package kernel

// The definitions. Conversions around products keep compilers of machines with a
// fused multiply-add from fusing them.

func genericDotBF16(w []uint16, x []float32) float32 {
	x = x[:len(w)]
	n := len(w) &^ 15
	var s float32
	if n > 0 {
		var low, high [8]float32
		lanesBF16(&low, w[:n], x[:n])
		lanesBF16(&high, w[8:n], x[8:n])
		s = sumLanes(&low, &high)
	}
	for i := n; i < len(w); i++ {
		s += float32(FromBF16(w[i]) * x[i])
	}
	return s
}

// lanesBF16 sums the first eight of every sixteen elements.
func lanesBF16(o *[8]float32, w []uint16, x []float32) {
	var a, b, c, d, e, f, g, h float32
	for len(w) >= 8 && len(x) >= 8 {
		a += float32(FromBF16(w[0]) * x[0])
		b += float32(FromBF16(w[1]) * x[1])
		c += float32(FromBF16(w[2]) * x[2])
		d += float32(FromBF16(w[3]) * x[3])
		e += float32(FromBF16(w[4]) * x[4])
		f += float32(FromBF16(w[5]) * x[5])
		g += float32(FromBF16(w[6]) * x[6])
		h += float32(FromBF16(w[7]) * x[7])
		if len(w) < 16 || len(x) < 16 {
			break
		}
		w, x = w[16:], x[16:]
	}
	*o = [8]float32{a, b, c, d, e, f, g, h}
}

// genericDotF32 wants a length that is a multiple of sixteen.
func genericDotF32(w, x []float32) float32 {
	if len(w) == 0 {
		return 0
	}
	var low, high [8]float32
	lanesF32(&low, w, x)
	lanesF32(&high, w[8:], x[8:])
	return sumLanes(&low, &high)
}

func lanesF32(o *[8]float32, w, x []float32) {
	var a, b, c, d, e, f, g, h float32
	for len(w) >= 8 && len(x) >= 8 {
		a += float32(w[0] * x[0])
		b += float32(w[1] * x[1])
		c += float32(w[2] * x[2])
		d += float32(w[3] * x[3])
		e += float32(w[4] * x[4])
		f += float32(w[5] * x[5])
		g += float32(w[6] * x[6])
		h += float32(w[7] * x[7])
		if len(w) < 16 || len(x) < 16 {
			break
		}
		w, x = w[16:], x[16:]
	}
	*o = [8]float32{a, b, c, d, e, f, g, h}
}

func sumLanes(low, high *[8]float32) float32 {
	var s [8]float32
	for i := range s {
		s[i] = low[i] + high[i]
	}
	return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))
}

func genericOneRowBF16(o *[Four]float32, w []uint16, xs []float32) {
	for j := range o {
		o[j] = genericDotBF16(w, xs[j*len(w):(j+1)*len(w)])
	}
}

func genericFourRowsBF16(o *[Four]float32, w []uint16, x []float32) {
	for j := range o {
		o[j] = genericDotBF16(w[j*len(x):(j+1)*len(x)], x)
	}
}

func genericFourRowsF32(o *[Four]float32, rows []float32, stride int, x []float32) {
	n := len(x) &^ 15
	for j := range o {
		row := rows[j*stride : j*stride+len(x)]
		s := genericDotF32(row[:n], x[:n])
		for i := n; i < len(x); i++ {
			s += float32(row[i] * x[i])
		}
		o[j] = s
	}
}

func genericTileBF16(o *[Four * Four]float32, w []uint16, xs []float32) {
	c := len(w) / Four
	for r := range Four {
		genericOneRowBF16((*[Four]float32)(o[r*Four:]), w[r*c:(r+1)*c], xs)
	}
}

func genericTileF32(o *[Four * Four]float32, w, xs []float32) {
	c := len(w) / Four
	for r := range Four {
		genericFourRowsF32((*[Four]float32)(o[r*Four:]), xs, c, w[r*c:(r+1)*c])
	}
}

func genericAxpy(y []float32, a float32, x []float32) {
	x = x[:len(y)]
	for i := range y {
		y[i] += float32(a * x[i])
	}
}
