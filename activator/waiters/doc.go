// Package waiters finds the requests that wait, by their ids, and knows when none waits.
package waiters
