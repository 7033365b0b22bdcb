// Package simulate is a backend on a virtual clock: a day of a fleet in minutes,
// with no GPU, and the same to the byte each time it is run.
//
// Nothing is decided here. The loop is orchestrator's with its clock, its executor
// and its names given from outside; the plans are placement's; requests live in the
// activator's own queues (admission.Queue and Request). What is modelled is what
// those command and wait for: nodes with their GPUs, links, disks and stores, and
// engines.
//
// # Time
//
// One goroutine takes events from a heap in the order of their times, and those
// of one time in the order in which they were set. There is no goroutine per
// request or node, and nothing depends on a real clock, on the order of a map or
// on chance but that of Config.Seed. The nth start of a function draws the same
// times whatever else is different, so that policies are compared on equal luck.
//
// The loop is given a turn when it has news (Config.Gather after the first of
// them), when it asked for one, and every second. Messages between it and nodes
// take Config.Latency.
//
// # A start
//
//	READY = max(bytes arriving, engine booting) + load + warm-up
//
// as the agent of a real node does it. Bytes arrive over the node's link, which
// all that stage there share evenly, and over what all sources together give
// (Config.Sources); replicas of one node that want the same checkpoint share its
// arrival, and what a start that was ended has brought is not brought again. The
// store keeps checkpoints under its bytes, least recently used first to go, never
// one that a replica lives on. Weights are loaded from the disk, or from host
// memory where the page cache has them: what replicas leave of the node's memory.
// A sleeper gives its GPUs back and keeps its weights in host memory; it rises
// with a copy. Times of the engine scatter about the fleet's medians (lognormal);
// Config.Times gives each start its own, such as those a real one had.
//
// Statuses are the heartbeats a real agent sends: every 2 s, and at once when
// something changes. Steps of a start that change no state are said at once only
// where clients tell how long they wait, for then they are decided about by what
// is left of it.
//
// # An engine
//
// It works at as many requests at once as its model's scale.target, and the queue
// gives it up to twice that, as it does live; the others stand in line in the
// engine. A request takes its prompt's tokens over the prefill rate and its
// answer's over the decode rate, however many are worked at.
//
// # Breaking it
//
// State is a run with handles: nodes are killed, cut off, slowed and returned,
// engines crash and hang, starts fail, GPUs fall ill, messages come late, twice or
// not at all, the orchestrator stands still, is replaced or dies. Views tell what
// is so, whatever the loop believes, and Fated the one end of every request.
// Config.Step looks after every event.
//
// # Cost
//
// A request that finds its model READY costs an event and a microsecond; what a
// day takes is the loop's turns, for which only what changed is told. The result
// keeps histograms, never requests: memory goes with models and nodes.
// BenchmarkDay measures it.
//
// # What is not modelled
//
// Blocks of checkpoints borrowed from other nodes, adapters, warm interpreters,
// prefix caches, batching that slows single requests down, and clients that come
// again after they were refused. A flow that is slow elsewhere leaves its share
// of a link unused.
//
// It is one idea: one world on one clock. Nodes, replicas, flows and requests are actors
// of the same heap of events.
package simulate
