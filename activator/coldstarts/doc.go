// Package coldstarts remembers which cold starts recent requests took part in, and how long
// each took from READY to the first byte of its engine.
package coldstarts
