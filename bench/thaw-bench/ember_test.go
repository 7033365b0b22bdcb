package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// TestEmber: the benchmark measures something on the shipped model.
func TestEmber(t *testing.T) {
	var out bytes.Buffer
	err := runEmber(t.Context(), []string{"-tiny", "../../functions/shipped/tiny", "-tiny-only", "-starts", "2", "-tokens", "16"}, &out, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.Contains(s, "| tiny (0.9M) |") || strings.Contains(s, "NaN") {
		t.Error(s)
	}
}
