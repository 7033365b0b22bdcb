// Package link is what the processes of a cluster say to each other: the
// controller, which decides, the activators, which hold requests, and on each node
// the loader, which speaks for the pods there.
//
// Activators and loaders dial the controller that leads and keep one connection
// to it. What they send is news, never a question: everything is pushed, both
// ways, so a wake costs a hop and not an interval. The first messages of a
// connection say everything anew, so whoever restarts, on either end, is told
// what is; nothing is remembered for somebody who is away.
//
// An activator whose controller is away serves on with what it was told last. One
// that is away itself is believed for a moment (its demand is not taken for gone),
// and then its requests are: they were on its connections.
//
// None of this needs the API of Kubernetes: an activator has no access to it at
// all.
package link
