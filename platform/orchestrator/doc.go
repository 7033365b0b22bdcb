// Package orchestrator is the control loop: from agents' heartbeats and activators' demand it keeps
// the state of functions, nodes and replicas, has package placement plan, commands agents
// accordingly, handles lost nodes and failed starts, and publishes each function's replicas to
// activators. One machine, agents, Kubernetes and the simulator run the same loop.
//
// It is one idea in more than 2,500 lines: its parts read and write one world, the registry
// of functions, nodes and replicas. The parts are
//
//	inbox          the updates of activators, agents and commands
//	commander      sends commands to agents
//	catalogReader  applies the catalogue
//	leadership     whether the agents obey this server, and whether their silence is believed
//	lifecycle      starts and stops replicas, and follows them to their end
//	sleeping       puts replicas to sleep and wakes them
//	adapters       loads adapters
//	teamAccounts   charges teams for what their functions hold
//	coldStartLog   the newest cold starts
//	publisher      gives snapshots of functions to the data path
//
// loop takes the turn with them; Orchestrator has the calls that others make. Packages below this
// one hold what needs no world: foresight, events, metrics, words. What is pure is
// elsewhere: placement, autoscale, forecast, quota.
//
// # One owner
//
// One goroutine (Run) owns the state. Producers put updates into the inbox and signal:
// the activator its demand and wakes, agents their heartbeats, commands their results. Updates of
// one subject overwrite each other, so a storm costs one turn, and the inbox is bounded
// by the number of subjects. A turn applies the whole inbox, publishes functions that
// became READY or failed, so that waiters are released first, and then plans and acts.
// Commands to agents run in goroutines of their own; their results go to the inbox.
//
// # What a turn costs
//
// The cost of a turn depends on the changes, not on the size of the world.
// placement.Planner caches its work and gets the changed functions and nodes; the data
// path reports the functions whose demand changed; an unchanged heartbeat is skipped.
// Once a second, at a tick, busy functions are evaluated in any case. A turn calls the data
// path only to publish, to remove, and to abort what goes through a lost agent: it works on the
// demand that was reported, and a replica that left the routes is unloaded on counts that
// were reported after that was published. A test finds missing calls of enqueue: in random worlds it compares the
// planner's state with the loop's.
//
// # Determinism
//
// Options can replace the clock, the source of ids and the execution of commands.
// Nothing in a turn depends on the order of a map, so the same updates in the same
// order give the same commands: a simulator's seed reproduces a run.
//
// # Agents are the truth
//
// Only the epoch is on disk. A server that restarts raises its epoch, reads the agents'
// heartbeats and adopts the replicas in them; a replica of an unknown model is stopped
// after a recheck. Agents refuse commands of a lower epoch, so a superseded server does
// no harm.
//
// A node that misses three heartbeats is lost: its replicas leave the routes and are
// placed elsewhere. Late and repeated heartbeats are dropped by their sequence number
// within the agent's process lifetime.
//
// # Implausible updates
//
// Updates that would cost much if wrong are checked twice: a catalogue that lost most
// of its functions, a node that lost most of its replicas or all its GPUs, most nodes
// silent at once. Once most agents obey a newer server, this one reports it, sends no
// more commands, and refuses requests that would need a start. Time in which the loop
// did not run (a suspended laptop, SIGSTOP), and jumps of its clock, do not count as
// silence or idle time.
//
// # Reasons
//
// Every action has a reason, as a word and as a sentence. The last thousand events are
// kept, and Explain returns the state of a function, its reason, and how the last
// decision about it was made.
//
// # Sleep
//
// A replica going to sleep leaves the routes and drains before the sleep command is
// sent; its room is taken until its node reports the memory as free. Waking is a cold
// start whose times are kept apart. A replica that does not fall asleep, does not wake,
// or dies meanwhile is stopped, and its waiters get an ordinary cold start without a
// backoff.
//
// # Prewarming
//
// With Options.Foresight the loop records when functions are used, forecasts the next uses
// and starts functions ahead of them: see package foresight.
//
// # Stopping
//
// A stopping replica leaves the routes, drains until no request is in flight or its
// drain time is over, and only then is unloaded. Its room is taken until its node
// reports that it is gone.
package orchestrator
