package spend

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// TestBudgets: whatever requests reserve and cost, in whatever order they end, a budget
// spends at most its limit, one reservation, and what requests cost beyond their own. What
// is charged is what requests cost, once, and nothing stays reserved.
func TestBudgets(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		l, err := Open("")
		if err != nil {
			t.Fatal(err)
		}
		budgets := []Budget{{Account: "remote a", Limit: 10}, {Account: "team b", Limit: 20 * random.Float64()}}
		type request struct {
			r            *Reservation
			amount, cost float64
		}
		var open []request
		var spent, excess, largest float64
		refused := 0
		end := func() {
			i := random.IntN(len(open))
			q := open[i]
			open = append(open[:i], open[i+1:]...)
			q.r.Settle(q.cost, noon)
			q.r.Settle(q.cost, noon)
			spent += q.cost
			excess += max(0, q.cost-q.amount)
		}
		for range 300 {
			if len(open) > 0 && random.IntN(2) == 0 {
				end()
				continue
			}
			q := request{amount: random.Float64(), cost: random.Float64() * 1.2}
			var refusal *Refusal
			if q.r, refusal = l.Reserve(noon, q.amount, budgets...); refusal != nil {
				refused++
				if refusal.Used != (l.Spent(refusal.Budget.Account, noon) >= refusal.Budget.Limit) ||
					refusal.Renews != time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC) {
					t.Fatalf("seed %d: %+v", seed, refusal)
				}
				continue
			}
			open, largest = append(open, q), max(largest, q.amount)
		}
		for len(open) > 0 {
			end()
		}
		for _, b := range budgets {
			if got := l.Spent(b.Account, noon); got-spent > 1e-9 || spent-got > 1e-9 {
				t.Fatalf("seed %d: %s has spent %v, its requests cost %v", seed, b.Account, got, spent)
			}
			if b.Limit > 0 && spent > b.Limit+largest+excess+1e-9 {
				t.Fatalf("seed %d: %v spent of %v, largest reservation %v, excess %v", seed, spent, b.Limit, largest, excess)
			}
			if a := l.accounts[b.Account]; a.reserved != 0 || a.requests != 0 {
				t.Fatalf("seed %d: %+v", seed, a)
			}
		}
		if refused == 0 {
			t.Fatalf("seed %d: no request was refused", seed)
		}
	}
}

// TestDay: a day ends at midnight UTC, wherever the server is, and never begins again.
func TestDay(t *testing.T) {
	l, _ := Open("")
	b := Budget{Account: "a", Limit: 1}
	evening := time.Date(2026, 11, 29, 23, 59, 59, 0, time.UTC)
	spendOne := func(now time.Time) {
		t.Helper()
		r, refusal := l.Reserve(now, 1, b)
		if refusal != nil {
			t.Fatal(refusal)
		}
		r.Settle(1, now)
	}
	spendOne(evening)
	east := evening.In(time.FixedZone("east", 10*3600))
	if r := l.Room(east, b); r == nil || !r.Used {
		t.Errorf("midnight elsewhere renews it: %+v", r)
	}
	over, _ := l.Reserve(noon, 5)
	over.Settle(0, noon)
	spendOne(evening.Add(time.Second))
	if r := l.Room(evening, b); r == nil {
		t.Error("a clock that goes back renews it")
	}
}

// TestRestart: another ledger of the same folder knows what was spent, for the rest of the
// day; what is no ledger is an error that says what to do.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		for i := range 3 {
			r, _ := l.Reserve(noon, 1, Budget{Account: "remote default/cloud"}, Budget{Account: "team default"})
			r.Settle(0.25, noon)
			if i == 1 {
				time.Sleep(time.Second) // killed here, it has two
				if again, err := Open(dir); err != nil || again.Spent("team default", noon) != 0.5 {
					t.Errorf("%v %v", again, err)
				}
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	again, err := Open(dir)
	if err != nil || again.Spent("remote default/cloud", noon) != 0.75 || again.Spent("team default", noon) != 0.75 {
		t.Fatalf("%v %v", again, err)
	}
	if got := again.Spent("team default", noon.Add(12*time.Hour)); got != 0 {
		t.Errorf("%v on the next day", got)
	}
	if err := os.WriteFile(filepath.Join(dir, fileName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "move the file away") {
		t.Error(err)
	}
}
