// Package events keeps the newest events of the control loop. Each has a kind, a reason as a
// word and as a sentence, and a number; the log and a hook get it as it happens.
package events
