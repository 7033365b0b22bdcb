// Package simulate runs the real orchestrator on a virtual clock with a trace's requests and
// simulated nodes and engines, and returns waiting times, cold starts and GPU hours, identical in
// every run of a seed.
//
// Nothing is decided here. The orchestrator is the real one, with its clock, executor
// and names injected; placement makes the plans; requests wait in the activator's own
// queues (admission.Queue and Request). The simulator models what these command and wait
// for: nodes with their GPUs, links, disks and stores, and engines.
//
// # Time
//
// One goroutine takes events from a heap in the order of their times; events at the same
// time fire in the order they were scheduled. No request or node has a goroutine, and
// nothing depends on a real clock or on map order. All randomness comes from
// Config.Seed. The nth start of a function draws the same times in every run of a seed,
// so that policies are compared on equal draws.
//
// The orchestrator runs a turn Config.Gather after the first change, when it asked for
// one, and every second. Messages between it and the nodes take Config.Latency.
//
// # A start
//
//	READY = max(bytes arriving, engine booting) + load + warm-up
//
// as on a real node. Bytes arrive over the node's link, shared evenly by all transfers of
// the node.
// Replicas of one node that need the same checkpoint share its transfer, and bytes
// staged by a cancelled start are kept. The store evicts the least recently used
// checkpoint to stay within its size, never one that a replica uses. Weights are loaded
// from the disk, or from host memory if the page cache holds them: the page cache is the
// memory that replicas leave. A sleeping replica frees its GPUs and keeps its weights in
// host memory; its wake-up copies them back. Engine times scatter about the fleet's
// medians (lognormal); Config.Times sets the times of each start, for example measured
// ones.
//
// Nodes send the heartbeats of a real agent: every 2 s, and at once when a state
// changes. Progress within a state is sent at once only if clients have timeouts, since
// then it decides which requests are refused.
//
// # An engine
//
// An engine works on as many requests at once as its model's scale.target. The queue
// sends it up to twice that, as in production; the rest wait inside the engine. A
// request takes its prompt's tokens at the prefill rate and its answer's at the decode
// rate, whatever the concurrency.
//
// # Faults
//
// The tests inject faults into a run (faults_test.go, chaos_test.go): nodes lose power, are
// partitioned, slowed and returned; engines crash and hang; starts fail; GPUs become
// unhealthy; messages are delayed, doubled or lost; the orchestrator stalls, is replaced or
// dies. OnRequestEnd gets the end of every request, and Config.Step runs after every event.
//
// # Cost
//
// A request that finds its model READY costs one event and a microsecond. The rest of a
// day's cost is the orchestrator's turns, which read only changes. The result keeps
// histograms, not requests: memory grows with models and nodes. BenchmarkDay measures
// it.
//
// # What is not modelled
//
// Checkpoint blocks from peers, adapters, warm interpreters, prefix caches, batching
// that slows single requests, and clients that retry after a refusal. A transfer that is
// limited elsewhere leaves its share of a link unused.
//
// It is one idea: one world on one clock. Nodes, replicas, transfers and requests are
// actors of the same event heap.
package simulate
