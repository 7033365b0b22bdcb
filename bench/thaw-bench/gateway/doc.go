// Package gateway measures the CPU time of a request through thaw, nginx, a plain ReverseProxy and
// vllm-router before one fake engine; memory and delay of queued requests, start overhead.
//
// It compares the CPU time of the gateway's own processes, not latency: on shared cores
// CPU time is reproducible, and it bounds the throughput of a machine. Every answer is
// compared byte for byte with the engine's; a gateway with wrong answers is not measured
// (a peer's rare truncated stream is counted and shown).
//
// It also measures the memory of a queued request, the delay from the engine's readiness
// to a queued request's arrival (by the engine's clock), and the platform's overhead on
// an engine's start.
package gateway
