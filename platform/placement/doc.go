// Package placement plans how many replicas of each model run and on which nodes, and which are
// stopped, put to sleep, woken or evicted for them; the orchestrator carries the plan out. It is
// pure: a snapshot of the world and a time go in, a plan comes out. It does no I/O, starts no
// goroutine and reads no clock, so the local backend, the Knative backend and the simulator make
// the same decisions.
//
// It is one idea in more than 2,500 lines: placing, evicting, scaling down and the
// incremental planner work on one set of rooms and promises, and splitting them would
// export that state. What does not need that state is in packages of its own: rooms (the
// free resources of a node), victims (the cheapest set of replicas to evict), eviction
// (the order of eviction), starttime (estimates) and explain (records and sentences).
//
// It is level-triggered. No decision binds the next plan: the next snapshot shows the
// effect of a lost event, such as a death, an answer or a heartbeat. A lost event costs
// a tick, never a request.
//
// Its property test checks after every step of random worlds:
//
//   - GPUs, host memory, processors and pods are never promised twice, in count or in
//     bytes; room that a stopping replica still holds is not free.
//   - A team never holds more than its maximum, and no borrower gets its guarantee.
//   - A function without replicas gets one start, however many requests wait.
//   - A replica with requests in flight is not evicted and not scaled down. The
//     exceptions leave the routes, and their requests in flight finish: a replica that
//     requests of priority low hold, for others; and, against starvation, one that is
//     never idle, after its time slice, for a function that has waited long or a team
//     below its share.
//   - Idle time counts from the last request's end and from READY.
//   - A sleeping replica holds host memory and no GPU; it wakes only onto free GPUs,
//     and is the first to leave if the host is short of something.
//
// # Decide and Planner
//
// Decide plans a World from scratch. A Planner gets the changes and caches the rest:
// rooms with their free resources, the evictable replicas of each, the missing replicas
// of each function, when it is due again. Decide is a Planner used once, and a test
// compares the two after random steps, so the incremental one affects cost only.
//
// A plan has four steps. Nodes whose lease has ended are lost. Functions that were
// touched, are due, or got an action in the last plan are scaled: surplus replicas
// stop, missing ones are recorded (scale.go). Pending starts are placed by rank
// (placeAll): room promised to one is not available to those behind it. Then all
// promises are reverted; the caller reports the results of the actions.
//
// Functions with the same placing properties form an equivalenceClass: when one is
// blocked, so are those behind it, untried, also in later plans, until a change may help
// (helpCount) or another function is promised something else (pendingQueue.order). So
// thousands of waiting functions add next to nothing to the cost of a plan.
//
// The state of the planner is a world (nodes and their rooms), teamCounts, a pendingQueue
// of the functions that lack replicas, the plan in progress, and for each need an attempt
// to place it.
//
// # Placing
//
// A function is placed where it costs least, in seconds: the expected time to READY
// there, measured or derived from sizes and rates (starttime), plus the cost of the
// choice for other functions. Cached bytes count for the time they save and no more: a
// checkpoint that is fetched in a second does not open an unused node, one that takes a
// minute does. The GPUs of one model are of one group if one has enough, of the smallest
// such, so that whole groups and nodes stay free for large models. A node whose store is
// too small for the checkpoint is not eligible.
//
// A function that cannot be placed gets a Verdict: the missing resource, and an ETA
// derived from the times at which busy replicas may be evicted.
//
// # Eviction
//
// Idle replicas are evicted by the score of the policy (package eviction: lru, lfu,
// gdsf, next-use). Among the sets of replicas that make enough room on a node, the one with
// the least added cost is chosen: one large replica, several small ones, or all that
// share a GPU. The score includes the measured reload time, from sleep or from a store.
//
// A busy replica leaves the routes for four reasons only: its requests are of priority low
// and another waits; its time slice is over and
// a request has waited for Patience; its team used more than its share and the waiting
// team less; its team borrows GPUs that the waiting team is guaranteed.
//
// A function that is needed again soon after its eviction was evicted too early. The
// caller detects that (setbacks.Ghosts), and Function.MinResidency then protects its replicas,
// the longer the more often it happens, except from requests that waited for Patience.
//
// # Teams
//
// Teams do not share one queue. The team that used less lately, over its guarantee, and
// holds less now is placed first. A team that used less than half of what the holder's
// team used, and holds less of its share, does not wait for a time slice: a queue of
// ten thousand requests delays another team by the requests in flight and one switch.
// A smaller difference waits for the time slice, which limits how often two teams with
// constant demand switch.
//
// A team over its budget of the day (Team.OverBudget) gets no GPUs and drains those it
// holds; a team whose checkpoints fill its share of the stores
// (Function.CachedNodesOnly) runs only where the bytes are.
//
// # Sleep
//
// A replica whose engine can sleep stops in steps. Idle or evicted, it releases its
// GPUs and keeps its weights in host memory, within the node's budget for sleep
// (Node.Sleep); without room it drops the weights and keeps its process, if waking is
// then still faster than a start. Idle once more, or if host memory is short, it stops;
// its bytes stay in the store. On demand it wakes up, unless its GPUs are held by a
// busy replica or a start on another node would be faster.
//
// # Time
//
// An Instant is the span since the caller's loop began, on a monotonic clock. Jumps of
// the wall clock evict and expire nothing.
package placement
