// Package orchestrator is the control loop that every backend shares: inbox, decide,
// act. It is the registry of nodes and replicas, turns plans of package placement into
// commands, and publishes the results to the data path.
//
// It is one idea in more than 2,500 lines: each part reads and writes the state of the
// loop. What is pure is elsewhere: placement, autoscale, forecast, quota.
//
// # One owner
//
// One goroutine (Run) owns the state. Producers put news into the inbox and signal: the
// activator its wakes, agents their heartbeats, commands their results. News of one
// subject overwrite each other, so a storm costs one turn, and the inbox is bounded by
// the number of subjects. A turn takes the whole inbox, publishes at once what became
// READY or failed, so that waiters are released first, and then plans and acts.
// Commands to agents run in goroutines of their own and come back as news.
//
// # What a turn costs
//
// A turn costs what has changed, not what there is. placement.Planner caches its work
// and is told of functions and nodes that changed; the data path yields the functions
// whose demand changed; an unchanged heartbeat is skipped. Once a second, at a tick,
// busy functions are looked at in any case, so lost news cost a tick. A missing enqueue
// is a bug that a test finds: in random worlds it compares what the planner knows with
// what there is.
//
// # Determinism
//
// Clock, ids and the execution of commands can be given (Options). Nothing in a turn
// depends on the order of a map, so the same news in the same order give the same
// commands: a simulator's seed reproduces a run.
//
// # Agents are the truth
//
// Only the epoch is on disk. A server that restarts raises its epoch, reads the agents'
// heartbeats and adopts the replicas in them; a replica of an unknown model is ended
// after a recheck. Agents refuse commands of a lower epoch, so a superseded server does
// no harm.
//
// A node that misses three heartbeats is lost: its replicas leave the routes and are
// placed elsewhere. Late and repeated heartbeats are dropped by their number within the
// agent's life.
//
// # Implausible news
//
// News that would cost much if wrong are checked twice: a catalogue that lost most of
// its functions, a node that lost most of its replicas or all its GPUs, most nodes
// silent at once. Once most agents obey a newer server, this one sends no more commands,
// reports it, and refuses requests that would need a start. Time in which the loop did
// not run (a suspended laptop, SIGSTOP), and jumps of its clock, do not count as silence
// or idle time.
//
// # Why
//
// Every action has a reason, as a word and as a sentence. The last thousand events are
// kept, and Explain says what a function does now, why, and how the last decision about
// it was made.
//
// # Sleep
//
// A replica that is to sleep leaves the routes, drains, and is then told to sleep; its
// room is taken until its node reports the memory as free. Waking is a cold start whose
// times are kept apart. A replica that does not fall asleep, does not wake, or dies
// meanwhile is stopped, and its waiters get an ordinary cold start without a back-off.
//
// # Prewarming
//
// With Options.Foresight the loop records when functions are used, and passes forecasts
// to the planner: frequency, next use, the idle time worth keeping. A forecast or a hint
// becomes a lease: a start that is placed last, is evicted for any demand, and ends with
// the lease. Leases are paid from a budget of GPU time, and their results are counted.
//
// # Stopping
//
// A replica that is to be stopped leaves the routes, then drains until no request is in
// flight or its drain time is over, and only then is unloaded. Its room is taken until
// its node reports that it is gone.
package orchestrator
