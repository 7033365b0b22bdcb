package quota

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// TestLedger: accounts survive a restart, which does not refill a daily budget; the use
// of a day ends with the day.
func TestLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "teams.json")
	wall := time.Date(2026, 5, 6, 10, 0, 0, 0, time.UTC)
	life := func() *Accounts {
		l, err := OpenLedger(path)
		if err != nil {
			t.Fatal(err)
		}
		return NewAccounts(l)
	}
	now := placement.Instant(time.Second)
	use := func(a *Accounts, team string) functions.TeamUse { return a.Of(team, now, wall).Use(wall) }
	save := func(a *Accounts) {
		if err := a.Snapshot(now, wall, true)(); err != nil {
			t.Fatal(err)
		}
	}
	s := life()
	red := s.Of("red", now, wall)
	red.Suffered = 3
	red.Charge(Holdings{}, Holdings{GPUs: 2}, now, wall)
	wall, now = wall.Add(2*time.Second), now+2*time.Second
	save(s)
	s.Of("idle", now, wall)
	if s = life(); math.Abs(use(s, "red").Today-4) > 0.01 || use(s, "red").EvictionsSuffered != 3 {
		t.Errorf("after a restart: %+v", use(s, "red"))
	}
	// A team without an account in this process stays in the ledger.
	s.ledger.entries["gone"] = Entry{Today: 5, Total: 7}
	save(s)
	if s = life(); s.ledger.entries["gone"].Total != 7 || s.ledger.entries["gone"].Today != 5 {
		t.Errorf("gone: %+v", s.ledger.entries)
	}
	wall = wall.Add(24 * time.Hour)
	if s = life(); use(s, "red").Today != 0 || math.Abs(use(s, "red").Total-4) > 0.01 {
		t.Errorf("the next day: %+v", use(s, "red"))
	}
	save(s)
	if s = life(); s.ledger.entries["gone"].Today != 0 || s.ledger.entries["gone"].Total != 7 {
		t.Errorf("gone, the next day: %+v", s.ledger.entries)
	}
	// The file is written once in 30 s, and at once where that is forced.
	if later := now + saveEvery; s.Snapshot(later, wall, false) == nil || s.Snapshot(later+saveEvery-1, wall, false) != nil ||
		s.Snapshot(later+saveEvery, wall, false) == nil {
		t.Error("not written once in 30 s")
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	// Files that do not parse are put aside and reported.
	for i, bad := range []string{"", "{", `[]`, `{"teams":{"red":{"used":-1}}}`, `{"teams":{"../x":{}}}`, `{"day":"x"}`} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := OpenLedger(path)
		if err == nil || l == nil || len(l.entries) != 0 {
			t.Errorf("%d: %v %v", i, l, err)
		}
		if _, err := os.Stat(path + ".damaged"); err != nil {
			t.Errorf("%d is not kept: %v", i, err)
		}
		if _, err := OpenLedger(path); err != nil {
			t.Errorf("%d: the second time: %v", i, err)
		}
	}
}

// TestLedgerThatCannotBeRead: what cannot be read stays where it is, and there is no ledger.
func TestLedgerThatCannotBeRead(t *testing.T) {
	path := t.TempDir() // a folder
	if l, err := OpenLedger(path); l != nil || err == nil {
		t.Errorf("%v, %v", l, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func FuzzLedger(f *testing.F) {
	whole, _ := json.Marshal(ledgerFile{Day: 20000, Teams: map[string]Entry{"red": {Today: 1, Total: 2, Used: 3, Suffered: 4}}})
	f.Add(whole)
	f.Add([]byte(`{"day":1,"teams":{"a":{"used":1e999}}}`))
	f.Add([]byte(`{"teams":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var x, y Ledger
		if x.restore(data) != nil {
			return
		}
		again, err := json.Marshal(ledgerFile{x.day, x.entries})
		if err != nil {
			t.Fatal(err)
		}
		if err := y.restore(again); err != nil || fmt.Sprint(x.day, x.entries) != fmt.Sprint(y.day, y.entries) {
			t.Fatalf("%v, %v, %v", x, y, err)
		}
	})
}
