// Package events keeps the newest 1,000 events of the control loop in memory, writes each to the
// log, calls a hook with it, and has channels that followers read; it decides nothing. An event
// has a number, a kind, and a reason as a word and as a sentence.
package events
