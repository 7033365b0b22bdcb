// Package placement decides what runs where. It is the core of thaw and it is
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
//   - GPUs, host memory, processors and pods are never promised twice, neither in
//     count nor in bytes; room that a stopping replica still holds is not free.
//   - A team never holds more than its maximum, and what a team is guaranteed is
//     never taken from it for one who borrows.
//   - A function at rest gets one start, however many ask.
//   - A replica with requests in flight is never chosen: not to be evicted, not
//     to be scaled down. One exception keeps functions from starving: who is
//     never idle makes way after its turn (Policy.TimeSlice) for who has waited long,
//     or for a team that has had less than its share, and then only leaves the
//     routes; what it has in flight is not cut.
//   - Idle is counted from the last request's end and from ready.
//   - Whoever sleeps holds host memory and no GPU; it rises only onto GPUs that
//     are free, and is the first to go where the host is short of something.
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
// # Who makes way
//
// Where there is no room, those who are idle leave, by the policy's score of what
// keeping them is worth (Eviction.Score: lru, lfu, gdsf, next-use). Of the sets of
// them that make enough room on some node the one is taken whose loss is least,
// added up: one large one, several small ones, or all that share a GPU. Where the
// way back is measured, to a sleeper, to a store, it is in the score.
//
// Who is in use leaves for three reasons only, and then only the routes: it has
// had its Turn and somebody has waited for Patience; its team has had more than
// its share and who waits had less; its team borrows what who waits is
// guaranteed. Within a team a model so serves what is held for it before another
// takes its GPU, for as long as its turn lasts.
//
// Who comes back soon after it was evicted was missed. The caller's Ghosts notice
// that, and such a function is left alone (Function.MinResidency), the longer the more
// often it bounces, but not from somebody who has waited for Patience.
//
// # Teams
//
// Between teams nobody waits in one line with all. Who is placed first is whose
// team has had less lately, over what it is guaranteed, and holds less now. A
// team that has had less than half of what the holder's team had, and holds less
// of its share, does not wait for a turn: the holder leaves the routes at once,
// so that a queue of ten thousand raises the wait of another team by the requests
// in flight and one switch. One that had merely less waits for the holder's turn
// to end, which is what keeps two teams that always ask from moving each other
// faster than a switch is worth.
//
// A team that has used up its budget of the day (Team.OverBudget) is given no GPUs
// and drains those it holds; one whose checkpoints fill its share of the stores
// (Function.CachedNodesOnly) runs where the bytes are and nowhere else.
//
// # The ladder
//
// A replica whose engine can sleep goes down in steps. Idle, or in the way of
// another function, it gives its GPUs back and keeps its weights in host memory,
// where there is room for them, within what the node lets sleepers take
// (Node.Sleep); where there is not, it drops them and keeps its process, if that
// is a shorter way back than a start. Idle once more, or where host memory is
// wanted, it ends; its bytes stay in the store. Asked for, it rises, which takes a copy from host memory where a cold
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
package placement
