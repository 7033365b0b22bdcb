package sizing

import "strconv"

// usable is the share of a GPU's memory that is planned with: the driver has some of it.
const usable = 0.95

// maxGPUs bounds the tensor parallelism that is proposed.
const maxGPUs = 64

// Fit is where a model fits.
type Fit struct {
	Use  Use
	Need Need
	OK   bool
	// Ways are those that would make it fit, where it does not; each zero where none does.
	Ways Ways
}

// Ways make a model fit that does not.
type Ways struct {
	// GPUs of the same size that would be enough.
	GPUs int
	// Context and Requests that would fit on the GPUs that there are.
	Context, Requests int
	// Bits of a quantised variant that would fit there.
	Bits int
}

// FitOn chooses the fewest of count GPUs of memory bytes that hold a model. With u.GPUs set
// that many are meant and no others.
func FitOn(m *Model, u Use, memory int64, count int) Fit {
	room := int64(float64(memory) * usable)
	fits := func(m *Model, u Use) bool { return Of(m, u).Total() <= room }
	widest := 1
	for n := 1; n <= maxGPUs; n *= 2 {
		if !m.Divides(n) || u.GPUs > 0 && n != u.GPUs {
			continue
		}
		try := u
		try.GPUs = n
		if n <= max(count, 1) {
			widest = n
			if fits(m, try) {
				return Fit{Use: try, Need: Of(m, try), OK: true}
			}
		}
	}
	if u.GPUs > 0 {
		widest = u.GPUs
	}
	u.GPUs = widest
	f := Fit{Use: u, Need: Of(m, u)}
	if f.Need.Total() <= room { // a number of GPUs that is no power of two was asked for
		f.OK = true
		return f
	}
	for n := widest * 2; n <= maxGPUs; n *= 2 {
		try := u
		if try.GPUs = n; m.Divides(n) && fits(m, try) {
			f.Ways.GPUs = n
			break
		}
	}
	f.Ways.Context, f.Ways.Requests = Shorter(m, u, memory)
	for _, bits := range []int{8, 4} {
		narrow := *m
		// Scales and the layers that stay wide take about an eighth more.
		narrow.Weights = m.Weights * int64(bits) / 16 * 9 / 8
		if !m.Quantized && f.Ways.Bits == 0 && fits(&narrow, u) {
			f.Ways.Bits = bits
		}
	}
	return f
}

// Divides reports whether tensor parallelism over n GPUs can cut the model: the heads of
// attention evenly, and those of keys and values evenly or each onto as many GPUs.
func (m *Model) Divides(n int) bool {
	if m.Heads == 0 {
		return true
	}
	for _, l := range m.Cache {
		if l.Heads > 0 && l.Heads%n != 0 && n%l.Heads != 0 {
			return false
		}
	}
	return m.Heads%n == 0
}

// Divisors lists the numbers of GPUs, up to maxGPUs, that Divides accepts: 1, 2, 4.
func (m *Model) Divisors() string {
	list := "1"
	for n := 2; n <= maxGPUs; n++ {
		if m.Divides(n) {
			list += ", " + strconv.Itoa(n)
		}
	}
	return list
}

// Shorter returns the longest context, in steps of 1024 tokens, that fits on the GPUs of u,
// with as many requests as u has or, where none does, fewer; 0 if nothing fits.
func Shorter(m *Model, u Use, memory int64) (context, requests int) {
	room := int64(float64(memory) * usable)
	for requests = max(u.Requests, 1); requests >= 1; requests /= 2 {
		try := u
		try.Requests = requests
		low, high := 0, max(m.Context, u.Context)/1024
		for low < high {
			middle := (low + high + 1) / 2
			if try.Context = middle * 1024; Of(m, try).Total() <= room {
				low = middle
			} else {
				high = middle - 1
			}
		}
		if low > 0 {
			return low * 1024, requests
		}
	}
	return 0, 0
}
