package bpe

import (
	"bytes"
	"encoding/json/jsontext"
	"fmt"
	"strconv"
)

// newDecoder reads JSON in place: the decoder uses a Buffer's bytes. Names are not compared
// with those before, of which a vocabulary has too many.
func newDecoder(b []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(b), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// readList calls f for each element of an array, or each member of an object, that comes
// next; f must read it.
func readList(d *jsontext.Decoder, kind jsontext.Kind, f func() error) error {
	t, err := d.ReadToken()
	if err == nil && t.Kind() != kind {
		err = fmt.Errorf("want %v at byte %d, have %v", kind, d.InputOffset(), t.Kind())
	}
	for err == nil {
		switch d.PeekKind() {
		case jsontext.KindEndObject, jsontext.KindEndArray, jsontext.KindInvalid:
			_, err = d.ReadToken()
			return err
		}
		err = f()
	}
	return err
}

// readObject calls f with each name of the object that comes next; f must read the value.
func readObject(d *jsontext.Decoder, f func(name string) error) error {
	return readList(d, jsontext.KindBeginObject, func() error {
		name, err := d.ReadToken()
		if err != nil {
			return err
		}
		return f(name.String())
	})
}

// readText appends the decoded string that comes next to dst.
func readText(d *jsontext.Decoder, dst []byte) ([]byte, error) {
	v, err := d.ReadValue()
	if err != nil {
		return dst, err
	}
	if v.Kind() != jsontext.KindString {
		return dst, fmt.Errorf("want a string at byte %d, have %v", d.InputOffset(), v.Kind())
	}
	if raw := v[1 : len(v)-1]; bytes.IndexByte(raw, '\\') < 0 {
		return append(dst, raw...), nil
	}
	return jsontext.AppendUnquote(dst, v)
}

// readID reads a small non-negative integer.
func readID(d *jsontext.Decoder) (int32, error) {
	v, err := d.ReadValue()
	if err != nil {
		return 0, err
	}
	id, err := strconv.ParseUint(string(v), 10, 64)
	switch {
	case err != nil:
		return 0, fmt.Errorf("want a token id at byte %d, have %.40q", d.InputOffset(), v)
	case id > maxVocab:
		return 0, fmt.Errorf("token id %d is larger than %d", id, maxVocab)
	}
	return int32(id), nil
}
