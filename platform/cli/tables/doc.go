// Package tables prints the records of the API: a table of each kind, as a list or as
// changes of one.
package tables
