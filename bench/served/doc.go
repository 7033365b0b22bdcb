// Package served is a platform as a bench meets it from outside: a program that
// serves HTTP. It starts `thaw serve` in a folder of its own or speaks to one
// that runs, and knows the few calls of the control API that a bench needs.
package served
