// Package ratelimit makes a team's limits hold over all activators together, without
// asking anybody for each request.
//
// The controller has a Bank: what is left of each limit of each team. An activator
// has a Purse for each, with units that the bank gave it: requests, tokens or cold
// starts that may be spent, or places that are lent and come back. A request takes
// a unit out of the purse. Claims go up and Grants come down the link that is there
// anyway, in its frames, when something is needed and not per request: a purse is
// filled ahead with what it spends in a quarter of a second. Where nothing is scarce
// it has an eighth of its even part beforehand, so that the first request waits for
// nobody. Where the bank has less than is wanted, it calls in what others hold and do
// not need, and divides evenly: demand that comes to one activator alone gets the
// whole limit.
//
// # The law
//
// A unit is in one place: the bank, one purse, or spent. So for each limit of n units
// in a span s, all activators together admit in any time t at most n + n·t/s, and have
// at most n places in use, whatever is asked of whom, and whoever begins, ends or
// restarts. What is lost on the way counts as spent (a purse of an activator that
// died, a grant on a link that broke); places are free again when their activator is
// known to be dead, or was away for Believed.
//
// Whoever finds his purse empty asks and waits for an answer, at most Patience; there
// may be a unit elsewhere. The bank says so where there is none, and the request is
// refused with the time at which there will be.
//
// # Without a controller
//
// A purse without a link fills by itself, at its activator's part of the limit, and
// keeps its places. Parts add up to at most one: one that grows does so after those
// that shrink have said that they did. A new activator has none until it is told.
// While an activator is away the bank fills that much slower.
//
// A bank that begins knows nothing. Activators tell it what they hold, the part they
// have and what the bank before had left when it told them last. Until all are there
// that are expected (Gathered) it gives out only what fills by the parts of those
// that are. What nobody tells of is taken from Options.Saved, or is full.
//
// One case is not covered: an activator that is cut off from the controller for
// longer than Believed while clients reach it still has its part, and the others have
// it too. Giving nobody that part for ever would be worse.
package ratelimit
