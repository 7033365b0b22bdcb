// Package mtls issues the certificates by which thaw's processes authenticate to each other, makes
// TLS configurations that check them and follow their rotation, and splits TLS from plain
// connections on a port. A CA signs certificates one by one, for the agents that join a server.
//
// An authority signs the certificates of all names at once; then its key is dropped, so
// no other certificate can be signed. Rotation creates another authority, whose root is
// trusted (it is in the bundle) for a while before its certificates are presented.
//
// Both ends present a certificate, and both check the name in the other's. A connection
// is checked when it begins, by the present contents of the files or the Secret: a
// rotation restarts nothing and closes no connection.
//
// Split serves TLS and plain connections on one port; the first byte distinguishes them.
// Peers with a certificate arrive at one listener, probes and metrics at the other.
package mtls
