// Package events keeps the newest events of the control loop in memory, and passes each as it
// happens to the log, to a hook and to those who follow. An event has a number, a kind, and a
// reason as a word and as a sentence.
package events
