package main

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
)

// TestEvictionChoices: the flag accepts every eviction policy and lists them in its error.
func TestEvictionChoices(t *testing.T) {
	var names []string
	for e := eviction.LRU; !strings.HasPrefix(e.String(), "eviction("); e++ {
		names = append(names, e.String())
	}
	f, ok := reflect.TypeFor[cli.ServeConfig]().FieldByName("Eviction")
	if !ok || f.Tag.Get("oneof") != strings.Join(names, ",") || f.Tag.Get("default") != eviction.LRU.String() {
		t.Errorf("--eviction: %q, want %v", f.Tag, names)
	}
	var out, errs strings.Builder
	exit := run(context.Background(), []string{"serve", "--eviction", "fifo", "--data", t.TempDir()}, strings.NewReader(""), &out, &errs)
	if exit != kit.ExitUsage || !strings.Contains(errs.String(), "fifo") || !strings.Contains(errs.String(), "lru, lfu, gdsf, next-use") {
		t.Errorf("exit %d: %s", exit, errs.String())
	}
}
