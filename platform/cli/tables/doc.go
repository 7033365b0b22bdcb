// Package tables defines the columns in which the command line prints what the control API lists
// (functions, replicas, nodes, keys, events, …), and prints the changes of such a list.
package tables
