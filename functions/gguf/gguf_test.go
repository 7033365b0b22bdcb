package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"
)

// writer writes metadata.
type writer struct {
	b    []byte
	keys uint64
}

func (w *writer) u32(v uint32)  { w.b = binary.LittleEndian.AppendUint32(w.b, v) }
func (w *writer) u64(v uint64)  { w.b = binary.LittleEndian.AppendUint64(w.b, v) }
func (w *writer) text(s string) { w.u64(uint64(len(s))); w.b = append(w.b, s...) }

func (w *writer) key(name string, kind uint32) {
	w.keys++
	w.text(name)
	w.u32(kind)
}

func (w *writer) file() []byte {
	var head writer
	head.b = append(head.b, "GGUF"...)
	head.u32(3)
	head.u64(0)
	head.u64(w.keys)
	return append(head.b, w.b...)
}

func sample() *writer {
	w := new(writer)
	w.key("general.architecture", typeText)
	w.text("x")
	w.key("x.block_count", typeU32)
	w.u32(3)
	w.key("x.long", typeU64)
	w.u64(1 << 40)
	w.key("x.eps", typeF32)
	w.u32(math.Float32bits(0.5))
	w.key("x.minus", typeI32)
	w.u32(math.MaxUint32)
	w.key("x.yes", typeBool)
	w.b = append(w.b, 1)
	w.key("x.heads", typeList)
	w.u32(typeI32)
	w.u64(3)
	for _, v := range []uint32{4, 0, 8} {
		w.u32(v)
	}
	w.key("x.names", typeList)
	w.u32(typeText)
	w.u64(2)
	w.text("a")
	w.text("bc")
	w.key("x.template", typeText)
	w.text(string(make([]byte, maxText+1)))
	w.key("x.scores", typeList)
	w.u32(typeF32)
	w.u64(maxList + 1)
	w.b = append(w.b, make([]byte, 4*(maxList+1))...)
	w.key("x.half", typeF64)
	w.u64(math.Float64bits(0.25))
	return w
}

func TestRead(t *testing.T) {
	b := sample().file()
	m, err := Read(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if m.Text("general.architecture") != "x" || m.Int("x.block_count") != 3 || m.Int("x.long") != math.MaxInt32 || m.Int("x.minus") != 0 ||
		m.Int("x.heads") != 8 || m.Int("x.yes") != 1 {
		t.Errorf("%+v", m.Values)
	}
	if m.Values["x.eps"] != 0.5 || m.Values["x.half"] != 0.25 || m.Values["x.minus"] != -1.0 || m.Values["x.template"] != nil ||
		m.Values["x.scores"] != nil || m.Lengths["x.scores"] != maxList+1 || m.Lengths["x.names"] != 2 {
		t.Errorf("%+v %v", m.Values, m.Lengths)
	}
	// Cut anywhere it is an error that says so, and never more than that.
	for n := range b {
		if n > 600 && n%997 != 0 {
			continue
		}
		_, err := Read(bytes.NewReader(b[:n]), int64(n))
		if e, ok := errors.AsType[*Error](err); !ok || !e.Truncated {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
}

// TestEndsEarly: the tokens, which are most of the bytes, are counted and not read.
func TestEndsEarly(t *testing.T) {
	w := sample()
	w.key("tokenizer.ggml.tokens", typeList)
	w.u32(typeText)
	w.u64(1 << 20) // none of them follow
	b := w.file()
	m, err := Read(bytes.NewReader(b), int64(len(b)))
	if err != nil || m.Lengths["tokenizer.ggml.tokens"] != 1<<20 {
		t.Errorf("%v %v", m, err)
	}
}

func TestInvalid(t *testing.T) {
	with := func(change func(*writer)) []byte {
		w := new(writer)
		change(w)
		return w.file()
	}
	many := new(writer)
	many.keys = maxKeys + 1
	for name, b := range map[string][]byte{
		"another format": []byte("ggml" + string(make([]byte, 30))),
		"version":        append([]byte("GGUF\x09\x00\x00\x00"), make([]byte, 16)...),
		"keys":           many.file(),
		"name":           with(func(w *writer) { w.keys++; w.u64(1 << 50) }),
		"text":           with(func(w *writer) { w.key("a", typeText); w.u64(1 << 60) }),
		"type":           with(func(w *writer) { w.key("a", 99); w.u64(0) }),
		"list of lists":  with(func(w *writer) { w.key("a", typeList); w.u32(typeList); w.u64(1) }),
		"long list":      with(func(w *writer) { w.key("a", typeList); w.u32(typeU64); w.u64(1 << 62) }),
	} {
		_, err := Read(bytes.NewReader(b), int64(len(b)))
		if e, ok := errors.AsType[*Error](err); !ok || e.Truncated {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(sample().file())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Read(bytes.NewReader(b), int64(len(b)))
		if _, ok := errors.AsType[*Error](err); (err == nil) != (m != nil) || err != nil && !ok {
			t.Errorf("%v %v", m, err)
		}
	})
}
