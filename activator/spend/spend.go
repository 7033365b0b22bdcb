// Package spend is a ledger, in a file, of the money that each account spends a UTC day: it admits
// requests by daily budgets, reserves what they may cost and charges costs; it computes no prices.
//
// The cost of a request is known only after it. So a request is admitted while what its
// budgets have spent and reserved is below their limits, and reserves what it may cost. A
// budget of limit b therefore spends at most b, plus the reservation of one request, plus
// what requests cost beyond their own reservations.
//
// The sums are kept in a file, which [Ledger.Run] writes at every change, ten times a
// second at most. A process that is killed forgets what it spent in that time, and the
// requests under way.
//
// What a line of a batch costs is forgotten by no process and charged once: the line's entry
// in the batch's log has the charges, and the file has, beside the sums, up to where each log
// is charged. The charges behind that are made again after a restart.
package spend

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/loader/durable"
)

// fileName is the file in the data folder.
const fileName = "spend.json"

// writePause is the least time between two writes of the file.
const writePause = 100 * time.Millisecond

// Budget is the daily limit of an account; 0 is none. Title names it in messages.
type Budget struct {
	Account string
	Title   string
	Limit   float64
}

// Refusal is a budget that has no room.
type Refusal struct {
	Budget Budget
	Spent  float64
	Used   bool      // the limit is spent; false: the rest is reserved by requests under way
	Renews time.Time // when the budget is whole again
}

// Ledger holds the accounts. Its methods may be called concurrently.
type Ledger struct {
	path  string        // "": nothing is kept
	dirty newest.Signal // set while the file is older than the sums

	writing sync.Mutex // held while the file is written
	written int        // changes that the file has; guarded by writing

	mu       sync.Mutex
	day      string // 2026-11-29; never goes back
	accounts map[string]*account
	logs     map[string]int64 // the bytes of each log of entries whose charges are made
	changes  int
}

type account struct {
	spent    float64
	reserved float64
	requests int // that have a reservation
}

// kept is the content of the file.
type kept struct {
	Day   string             `json:"day"`
	Spent map[string]float64 `json:"spent"`
	Logs  map[string]int64   `json:"logs,omitzero"`
}

// Open reads the sums from the data folder; "" keeps none.
func Open(data string) (*Ledger, error) {
	l := &Ledger{dirty: newest.NewSignal(), accounts: map[string]*account{}, logs: map[string]int64{}}
	if data == "" {
		return l, nil
	}
	l.path = filepath.Join(data, fileName)
	raw, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	var k kept
	if err == nil {
		err = json.Unmarshal(raw, &k)
	}
	if err == nil && k.Day != "" {
		_, err = time.Parse(time.DateOnly, k.Day)
	}
	if err != nil {
		return nil, fmt.Errorf("what was spent today cannot be read from %s: %w; move the file away to begin the day's budgets anew", l.path, err)
	}
	l.day = k.Day
	for name, spent := range k.Spent {
		l.accounts[name] = &account{spent: spent}
	}
	maps.Copy(l.logs, k.Logs)
	return l, nil
}

// Run writes the file at every change until ctx ends, and a last time then.
func (l *Ledger) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return l.Flush()
		case <-l.dirty:
		}
		if err := l.Flush(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(writePause):
		}
	}
}

// Flush writes the file if it is older than the sums.
func (l *Ledger) Flush() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	changes := l.changes
	k := kept{Day: l.day, Spent: make(map[string]float64, len(l.accounts)), Logs: maps.Clone(l.logs)}
	for name, a := range l.accounts {
		if a.spent > 0 {
			k.Spent[name] = a.spent
		}
	}
	l.mu.Unlock()
	if l.path == "" || changes == l.written {
		return nil
	}
	raw, err := json.Marshal(k, json.Deterministic(true))
	if err != nil {
		return err
	}
	if err := durable.WriteFile(l.path, append(raw, '\n'), 0o600); err != nil {
		return err
	}
	l.written = changes
	return nil
}

// change notes that the file is older than the sums. mu is held.
func (l *Ledger) change() {
	l.changes++
	l.dirty.Set()
}

// turn begins a new day if the last one is over. mu is held.
func (l *Ledger) turn(now time.Time) {
	day := now.UTC().Format(time.DateOnly)
	if day <= l.day {
		return
	}
	l.day = day
	for name, a := range l.accounts {
		if a.spent = 0; a.requests == 0 {
			delete(l.accounts, name)
		}
	}
}

// account is made where there is none. mu is held.
func (l *Ledger) account(name string) *account {
	a := l.accounts[name]
	if a == nil {
		a = &account{}
		l.accounts[name] = a
	}
	return a
}

// find returns the first budget without room. mu is held.
func (l *Ledger) find(budgets []Budget, now time.Time) *Refusal {
	for _, b := range budgets {
		if b.Limit <= 0 {
			continue
		}
		a := l.accounts[b.Account]
		if a == nil || a.spent+a.reserved < b.Limit {
			continue
		}
		y, m, d := now.UTC().Date()
		return &Refusal{Budget: b, Spent: a.spent, Used: a.spent >= b.Limit, Renews: time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC)}
	}
	return nil
}

// Room returns the first budget without room; nil where each has some.
func (l *Ledger) Room(now time.Time, budgets ...Budget) *Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn(now)
	return l.find(budgets, now)
}

// Reserve reserves an amount in each budget, or in none where one has no room. Without a
// refusal the reservation must be settled.
func (l *Ledger) Reserve(now time.Time, amount float64, budgets ...Budget) (*Reservation, *Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn(now)
	if r := l.find(budgets, now); r != nil {
		return nil, r
	}
	r := &Reservation{ledger: l, amount: positive(amount)}
	for _, b := range budgets {
		a := l.account(b.Account)
		a.reserved += r.amount
		a.requests++
		r.accounts = append(r.accounts, b.Account)
	}
	return r, nil
}

// Spent is what an account has spent today.
func (l *Ledger) Spent(account string, now time.Time) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn(now)
	if a := l.accounts[account]; a != nil {
		return a.spent
	}
	return 0
}

// Reservation is what a request under way may cost.
type Reservation struct {
	ledger   *Ledger // nil once settled
	amount   float64
	accounts []string
}

// Settle charges the cost in place of the reservation, to the present day. A second call
// does nothing. One goroutine at a time has r.
func (r *Reservation) Settle(cost float64, now time.Time) {
	l := r.ledger
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn(now)
	if r.release(); positive(cost) > 0 {
		for _, name := range r.accounts {
			l.account(name).spent += cost
		}
		l.change()
	}
}

// release ends the reservation. The ledger's mu is held.
func (r *Reservation) release() {
	for _, name := range r.accounts {
		a := r.ledger.account(name)
		if a.requests--; a.requests == 0 {
			a.reserved = 0 // not the rest that adding up leaves
		} else {
			a.reserved -= r.amount
		}
	}
	r.ledger = nil
}

// positive is x, or 0 where it is less or no number.
func positive(x float64) float64 {
	if x > 0 {
		return x
	}
	return 0
}
