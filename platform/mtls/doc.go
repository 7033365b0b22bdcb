// Package mtls is certificates by which processes of one installation know each
// other: who made them, what they are called, and how one is followed by another
// while connections go on.
//
// An authority signs the certificates of all names at once and forgets its key: there
// is nothing left that could sign another. Rotation is another authority, which is
// believed (its root is in the bundle) for a while before its certificates are shown.
//
// Both ends show a certificate and both look at the name in the other's. Connections
// are checked when they begin, by what the files or the Secret say at that moment:
// nothing is restarted for a rotation, and what is connected stays connected.
//
// Split lets one port take TLS and plain connections: the first byte tells them
// apart. Who has a certificate comes in by one listener, probes and metrics by the
// other.
package mtls
