// Package auth knows who calls: the keys, the team each belongs to, and what a
// team may use.
//
// Book is the keys. A key is shown once, when it is made; at rest there is only
// its HMAC-SHA256 under a key of its own that lies in a file beside, so that a
// copy of keys.json alone is worth nothing. A look-up hashes what the client
// sent and finds the hash in a map: an attacker who does not know the HMAC key
// cannot steer what is compared, so the time tells nothing; the compare itself
// is constant-time all the same.
//
// Limits is what teams may use: requests at once, requests held at once, requests
// and tokens a minute, cold starts an hour. All but tokens are counted before the
// fact and never exceeded, however many ask at once. Tokens are known only afterwards:
// they are charged from the engine's usage, and a team in debt waits until its
// debt is paid off, so the overshoot is what was in flight.
//
// Where several activators serve one cluster, Share ties them to a bank, and what is
// counted here is what the bank gave (activator/ratelimit). Patiently waits, a moment, for
// what another activator may have.
//
// The two files tokens (admin-token, join-token) are made at first start.
package auth
