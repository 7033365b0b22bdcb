// Package ratelimit enforces teams' limits (requests at once, requests that wait at once, requests
// and tokens a minute, cold starts an hour) in one process, or over all activators by units that
// its Coordinator, in the controller, allots to each; tokens are charged afterwards.
//
// [Limits] admits requests of one process. All limits but tokens are counted before the
// fact and never exceeded. Tokens are charged from the engine's usage afterwards: a team
// in debt waits until the debt is paid off, so the overshoot is what was in flight.
//
// # Several activators
//
// On a cluster the limits hold over all activators together, without a message per
// request. The controller has a [Coordinator], which holds the units not allotted to any
// activator; each activator has a [Bucket] per limit. A unit is a request, tokens, a cold
// start, or a place that is returned when its request ends. An activator sends
// [UsageReport]s and gets [Allotment]s over the control stream: a bucket is filled ahead
// with what it spends in a quarter of a second, and an unused one holds an eighth of its
// even share, so that a first request does not wait. Where demand exceeds what the
// coordinator has, it recalls units that others do not need and divides evenly, so that
// demand at one activator alone gets the whole limit.
//
// A unit is in one place: the coordinator, one bucket, or spent. So for each limit of n
// units in a span s, all activators together admit in any time t at most n + n·t/s, and
// have at most n places in use, through any start, end or restart. Units lost on the way
// (a bucket of an activator that died, an allotment on a broken connection) count as
// spent; places are free again when their activator is known to be dead or was away for
// [PartitionGrace].
//
// A request that finds the bucket empty waits at most [AllotmentWait] for an allotment.
// Where no activator has a unit left, the coordinator says when there will be one, and
// the request is refused with that time.
//
// # Without a controller
//
// A bucket without a connection refills by itself, at its activator's share of the limit,
// and keeps its places. Shares add up to at most one: a share grows only after those that
// shrink have been confirmed. A new activator has none at first. While an activator is
// away the coordinator refills that much slower.
//
// A new coordinator knows nothing. Activators report what they hold, their share and what
// the former coordinator had left. Until all expected activators are there (Recovered) it
// allots only what refills by the shares of those connected. A limit that no activator
// reports is full.
//
// Not covered: an activator that is cut off from the controller for longer than
// PartitionGrace while clients still reach it keeps its share, and the others have it too.
package ratelimit
