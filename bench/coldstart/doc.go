// Package coldstart measures cold starts: it scales a function of a platform to zero, sends a
// chat, and reports phases and what got slower than in an earlier run; and vLLM started by thaw
// and by hand.
package coldstart
