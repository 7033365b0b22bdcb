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

// Charge is what a Budget counts for the body of one request, or the bodies of a connection.
// One goroutine sets it; End may be called beside that.
type Charge struct {
	Budget  *Budget
	Account string

	mu    sync.Mutex
	bytes int64 // written under mu by the goroutine that sets it
	ended bool
}

var errChargeEnded = errors.New("httpserver: the memory for the body is given back")

// Set counts n bytes in place of those before. Where they are not free it changes nothing,
// and returns the error of Budget.Add; after End it returns an error.
func (c *Charge) Set(n int64) error {
	more := n - c.bytes
	if more == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return errChargeEnded
	}
	err := c.Budget.Add(c.Account, more)
	if err == nil {
		c.bytes = n
	}
	return err
}

// End gives the bytes back, once, and counts none any more.
func (c *Charge) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.Budget.Add(c.Account, -c.bytes)
		c.ended = true
	}
}
