// Package coldstart measures cold starts: the time from zero replicas to the first token, by
// phase and beside an earlier run, of which it lists the phases that became slower; and vLLM
// started by thaw beside vLLM started by hand.
package coldstart
