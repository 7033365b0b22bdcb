// Package schedule decides what runs where. It is the core of thaw and it is
// pure: a snapshot of the world and a time go in, a plan comes out. It does no
// I/O, starts no goroutine and reads no clock, so that the local backend, the
// Knative one and the simulator run the very same decisions.
//
// It is level-triggered. Nothing here remembers the last call: whatever was
// lost, a death, an answer, a heartbeat, is found again in the next snapshot.
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
//     and then only leaves the routes; what it has in flight is not cut.
//   - Idle is counted from the last request's end and from ready.
//   - Whoever sleeps holds host memory and no GPU; it rises only onto GPUs that
//     are free, and is the first to go where host memory is short.
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
// # The ladder
//
// A replica whose engine can sleep goes down in two steps. Idle, or in the way
// of another function, it gives its GPUs back and keeps its weights in host
// memory, where there is room for them; idle once more, or where that memory is
// wanted, it ends. Asked for, it rises, which takes a copy from host memory where
// a cold start takes minutes: unless its own GPUs are taken by somebody busy, or
// another node would have it READY sooner than they could be freed.
//
// Time is an Instant: the span since the caller's loop began, on a monotonic
// clock. A wall clock that jumps cannot be seen from here, so it can evict
// nothing and expire nothing.
package schedule
