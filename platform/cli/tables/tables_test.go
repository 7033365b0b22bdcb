package tables

import (
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
)

// TestCachedModels: the nearest first, and of many some.
func TestCachedModels(t *testing.T) {
	near := []api.NodeModel{{Model: "default/a", Tier: functions.TierNVMe}, {Model: "ml/b", Tier: functions.TierDRAM}, {Model: "ml/c", Tier: functions.TierNVMe}, {Model: "ml/d", Tier: functions.TierDRAM}, {Model: "ml/e", Tier: functions.TierNVMe}}
	for _, c := range []struct {
		near []api.NodeModel
		all  bool
		want string
	}{
		{nil, false, ""},
		{near[:3], false, "ml/b (memory), a (disk), ml/c (disk)"},
		{near, false, "ml/b (memory), ml/d (memory), a (disk), 2 more"},
		{near, true, "ml/b (memory), ml/d (memory), a (disk), ml/c (disk), ml/e (disk)"},
	} {
		if got := cachedModels(c.near, c.all); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
