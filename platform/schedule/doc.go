// Package schedule decides what runs where. It is the core of thaw and it is
// pure: a snapshot of the world and a time go in, a plan comes out. It does no
// I/O, starts no goroutine and reads no clock, so that the local backend, the
// Knative one and the simulator run the very same decisions.
//
// It is level-triggered. Nothing that was decided binds the next plan: whatever
// was lost, a death, an answer, a heartbeat, is found again in the next snapshot.
// A lost event costs a tick, never a request.
//
// What it promises, and what its property test checks after every step of
// random worlds:
//
//   - GPUs and host memory are never promised twice, neither in count nor in
//     bytes; room that a stopping replica still holds is not free.
//   - A team never holds more than its maximum, and what a team is guaranteed is
//     never taken from it for one who borrows.
//   - A function at rest gets one start, however many ask.
//   - A replica with requests in flight is never chosen: not to be evicted, not
//     to be scaled down. One exception keeps functions from starving: who is
//     never idle makes way after its turn (Policy.Turn) for who has waited long,
//     or for a team that has had less than its share, and then only leaves the
//     routes; what it has in flight is not cut.
//   - Idle is counted from the last request's end and from ready.
//   - Whoever sleeps holds host memory and no GPU; it rises only onto GPUs that
//     are free, and is the first to go where host memory is short.
//
// # Two ways to ask
//
// Decide plans a World from scratch. A Planner is told what has changed and
// keeps the rest worked out: rooms with what is free in them, who may make way
// in each, what every function lacks, when it is to be looked at again. Decide is
// a Planner used once, and a test holds the two equal after any steps, so that
// the incremental one is a matter of cost and of nothing else.
//
// A plan is made in four steps. Nodes that are silent are lost. Functions that
// were touched, are due, or were told something the last time are looked at:
// what they have too many of goes (function, in scale.go), what they lack is
// noted. Those who lack something are placed one after the other by their rank
// (placeAll): what one of them is promised, nobody behind it can take. Then all
// promises are taken back; what comes of them is for the caller to say.
//
// Functions that are alike, by all that placing looks at in who asks (kinship),
// share their fate: when one is blocked, so are those behind it, untried, and
// from one plan to the next for as long as nothing has changed that may help
// (Planner.help) and nobody was promised something else (Planner.order). That is
// why thousands who wait cost a plan next to nothing.
//
// # How many
//
// A function's load is remembered in a Load, which the caller feeds: the mean of
// the requests under way over a long window and a short one, by which replicas
// follow it up and down (Autoscale: rates, a panic that keeps what a burst
// needed, a delay). Nothing is kept for a function at rest. Held requests do not
// wait for a window: they have replicas started at once. The last replica goes by
// the model's idle time alone.
//
// # Where it is placed
//
// Where it costs least, in seconds: the expected time to READY there, measured
// or worked out from sizes and rates (expect.go), and what the choice costs
// others. Bytes that are near count for the time they save and no more: a
// checkpoint that is fetched in a second does not break into a whole node, one
// that takes a minute does. GPUs of one model are of one group where one has
// enough, of the smallest such, so that whole groups and whole nodes stay for
// what is large. A node whose store cannot take the checkpoint at all is none.
//
// Who cannot be placed gets a Verdict: what is short on which kind of node, and
// how long it may take, reckoned from when those who are in the way may leave.
//
// # The ladder
//
// A replica whose engine can sleep goes down in steps. Idle, or in the way of
// another function, it gives its GPUs back and keeps its weights in host memory,
// where there is room for them; idle once more, or where that memory is wanted,
// it ends. Asked for, it rises, which takes a copy from host memory where a cold
// start takes minutes: unless its own GPUs are taken by somebody busy, or another
// node would have it READY sooner than they could be freed.
//
// # Time
//
// An Instant is the span since the caller's loop began, on a monotonic clock. A
// wall clock that jumps cannot be seen from here, so it can evict nothing and
// expire nothing.
//
// # Why
//
// Every action carries a word for its reason. Planner.Explain gives the last
// decision about a function with what it was chosen from: candidates, their
// scores and the parts of these. It keeps the last two thousand decisions and
// writes over the oldest.
package schedule
