// Package coldstarts remembers which cold start each recent request waited for, and adds to the
// cold start's timeline its first request and how long the engine took for the first byte.
package coldstarts
