// Package enroll joins agents of other machines to a server by a token used once, and issues and
// renews the certificates that both ends then use; it has the server's and the agent's part.
//
// The server has an authority (package mtls) that lives as long as its data folder. An
// admin makes a join token: it may be used once, within an hour, and carries the
// fingerprint of the authority, so that the agent knows its server. The agent makes a key,
// sends the token with a certificate request over TLS, and gets a certificate for its own
// name. From then on it needs no token.
//
// Heartbeats and commands go over TLS with certificates at both ends. A heartbeat must be
// that of the agent in the certificate; commands and requests go only to the agent of that
// name, wherever its heartbeat says that it is; and an agent accepts connections of its
// server only. The server keeps a digest of each agent's key, so that an agent can be
// removed, and a name that is taken cannot be taken again without a token made for it.
//
// Join and Server.ServeHTTP are the two ends of the exchange. A reply that was lost does no
// harm: a token that was used is accepted again for the same id and key until it expires or the
// agent is removed or replaced.
package enroll
