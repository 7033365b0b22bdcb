package httpserver

import (
	"errors"
	"sync"
)

// Budget bounds the memory of bodies of requests, all together and per account, by the
// capacity of their buffers. Several servers may share one. Its methods may be called
// concurrently.
type Budget struct {
	total, share int64

	mu       sync.Mutex
	used     int64
	accounts map[string]int64 // without those that use nothing
}

// NewBudget makes a budget of total bytes, of which one account may use share.
func NewBudget(total, share int64) *Budget {
	return &Budget{total: total, share: min(share, total), accounts: map[string]int64{}}
}

// The errors of Budget.Add.
var (
	ErrBudgetUsed = errors.New("httpserver: the memory for bodies is in use")
	ErrShareUsed  = errors.New("httpserver: this account uses its share of the memory for bodies")
)

// Add counts more bytes for an account. Where they are not free it counts nothing and
// returns ErrBudgetUsed or ErrShareUsed. A negative number gives bytes back.
func (b *Budget) Add(account string, more int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.accounts[account] + more
	switch {
	case more > 0 && b.used+more > b.total:
		return ErrBudgetUsed
	case more > 0 && own > b.share:
		return ErrShareUsed
	}
	b.used += more
	if b.accounts[account] = own; own == 0 {
		delete(b.accounts, account)
	}
	return nil
}

// Used is the number of bytes in use.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// charge is the memory that a Budget counts for the bodies of one connection or request. One
// goroutine sets it; end may be called beside that.
type charge struct {
	budget  *Budget
	account string

	mu    sync.Mutex
	bytes int64 // written under mu
	ended bool
}

// set counts n bytes in place of those before.
func (c *charge) set(n int64) error {
	more := n - c.bytes
	if more == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return errConnClosed
	}
	if err := c.budget.Add(c.account, more); err != nil {
		return err
	}
	c.bytes = n
	return nil
}

// end gives the bytes back; none are counted any more.
func (c *charge) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.budget.Add(c.account, -c.bytes)
	c.bytes, c.ended = 0, true
}
