// Package events keeps the newest 1,000 events of the control loop in memory (Log), writes each to
// the program's log and passes it to a hook; beside that, Followers sends values to channels and
// drops those that find a full one; it decides nothing. An event has a number, a kind, and a reason
// as a word and as a sentence.
package events
