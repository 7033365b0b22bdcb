package quota

import (
	"testing"
	"time"
)

// TestToday: a day's use begins anew at midnight, and a clock that is set back grants no
// second budget.
func TestToday(t *testing.T) {
	var a Account
	wall := time.Date(2026, 11, 29, 23, 59, 0, 0, time.UTC)
	a.Charge(Holdings{}, Holdings{GPUs: 1}, 0, wall)
	a.Settle(50*time.Second, wall.Add(50*time.Second))
	if a.Today != 50 {
		t.Errorf("%v", a.Today)
	}
	a.Settle(60*time.Second, wall.Add(-25*time.Hour))
	a.Settle(62*time.Second, wall.Add(50*time.Second))
	if a.Today != 62 {
		t.Errorf("after the clock was set back: %v", a.Today)
	}
	a.Settle(90*time.Second, wall.Add(75*time.Second))
	if a.Today != 15 || a.Total != 90 {
		t.Errorf("after midnight: %v of %v", a.Today, a.Total)
	}
}
