package nodestore

import (
	"strings"
	"testing"
)

func TestMemory(t *testing.T) {
	if m, err := Memory(); err != nil || m <= 0 {
		t.Errorf("this machine: %v %v", m, err)
	}
	if !strings.Contains(Machine(), "/") {
		t.Errorf("machine %q", Machine())
	}
}
