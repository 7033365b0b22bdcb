// Package orchestrator is the loop that every backend shares: snapshot, schedule, act.
// It is the registry of nodes and replicas, it turns plans into commands, and
// it tells the data path what became of them.
//
// # One owner
//
// A single goroutine (Run) owns the world. Whoever has news leaves it in the
// inbox and rings: the activator its wakes, agents their heartbeats, commands
// their results. News of one subject overwrite each other there, so a storm
// costs one turn, and the inbox is bounded by the number of subjects. In a turn
// the loop takes the whole inbox, publishes at once what has become READY or
// has failed (a waiter is released before anything else is thought about), and
// only then asks the core and carries out its plan. Commands to agents run in
// goroutines of their own and come back as news.
//
// # What a turn costs
//
// What has changed, not what there is. The core (schedule.Planner) keeps what it
// worked out and is told of functions and nodes of which there is news; the data
// path tells whose demand has changed; a heartbeat that says nothing new is not
// looked through. Once a second, at a tick, those that are busy are looked at
// whether there is news of them or not, so what was lost costs a tick. Forgetting
// to stir a function is a bug that a test finds: it compares, in random worlds,
// what the core was told with what is.
//
// # The same news, the same commands
//
// Clock, chance and the carrying out of commands can be given (Options). Nothing
// that a turn does hangs on the order of a map, so a simulator that gives the same
// news in the same order gets the same commands, and a seed is a story.
//
// # Agents are the truth
//
// Nothing but the epoch is on disk. A server that restarts raises its epoch,
// hears the agents' heartbeats and adopts what they say they run; a replica of
// a model that the catalogue does not know is ended after a second look. An
// agent refuses commands of a lower epoch, so a server that was superseded and
// does not know it can do no harm.
//
// A heartbeat that is missed three times makes a node lost: its replicas leave
// the routes and are placed elsewhere. One that comes late or twice, by its number
// in its agent's life, is passed over.
//
// # Stale truth
//
// What would cost much if it were believed and wrong is looked at twice: a
// catalogue that has lost most of itself, a node most of whose replicas or all of
// whose GPUs are gone at once, most nodes silent together. What is late is not
// believed: heartbeats are numbered in each life of an agent, and commands carry
// the epoch of their server. Once most agents obey a newer server this one gives no
// commands any more, says so, and refuses whom it would have to start something
// for. Time in which the loop stood still (a suspended laptop, SIGSTOP), or by
// which its clock was set, has not passed: nobody was silent or idle in it.
//
// # Why
//
// Every action has a reason, a word for programs and a sentence for people. Events
// keep the last thousand, and Explain tells what a function does now, why, and how
// the last decision about it came to be.
//
// # Asleep
//
// A replica that schedule sends to sleep leaves the routes, is waited for like
// one that is to be stopped, and is then told to sleep; until its node says that
// its memory is free, its room is taken. Woken, it is a cold start of its own
// kind: its times are kept apart from those of starts. One that does not fall
// asleep, does not wake, or dies meanwhile is ended, and whoever waits for it
// gets an ordinary cold start, with no pause and no failure told.
//
// # Ahead
//
// With Options.Foresight the loop tells predict when functions are used, and the
// core what predict says of each: how often it is used, when next, how long it is
// worth being kept idle. What is foreseen, or hinted at by a caller, is a lease: a
// start that the core places last, over nobody who waits, that makes way for
// whoever asks, and ends with the lease. It takes of a budget of GPU time an hour;
// what became of each is counted. What was learned, and what starts took, is kept
// in a file and outlives the process.
//
// # Teams
//
// Every team has an account: the GPU-seconds its replicas held, charged when what
// it holds changes; what it used lately, which the core places and evicts by; and
// the evictions it inflicted on others and suffered from them. A team whose
// GPU-seconds of the day are used up is barred until midnight UTC. The accounts
// are kept in a small file (Ledger) and so outlive the server.
//
// # Two steps to the end
//
// A replica that is to be stopped first leaves the routes, then is waited for
// until no request is in flight on it or its drain time is over, and only then
// is unloaded. Until its node has said that it is gone, its room is taken.
package orchestrator
