// Package gateway measures what a request through the platform costs, beside
// the peers: nginx, a plain ReverseProxy and vllm-router, each in front of the
// same engine, in interleaved rounds on the same machine.
//
// What counts is the processor time of the gateway's own processes, not
// latency: on shared cores it is the number that repeats, and it bounds what a
// machine can carry. Every answer is compared with what the engine sent, byte
// for byte; a gateway that is quick and wrong is not measured (a peer's rare cut stream
// is counted and shown).
//
// Beside that: what a held request costs in memory, how soon after the engine's
// readiness a held request is with it (on the engine's own clock), and what the
// platform adds to an engine's own start.
package gateway
