package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
)

// TestMain lets the test program be the engine that it starts, as the real one is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-engine" {
		main()
	}
	os.Exit(m.Run())
}

// The benchmark must measure something on the shipped model.
func TestTiny(t *testing.T) {
	var out bytes.Buffer
	err := run(context.Background(), []string{"-tiny", "../../functions/shipped/tiny", "-tiny-only", "-starts", "2", "-tokens", "16"}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.Contains(s, "| tiny (0.9M) |") || strings.Contains(s, "NaN") {
		t.Error(s)
	}
}
