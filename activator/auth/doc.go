// Package auth stores API keys as hashes (in a file, or a copy in memory), creates and revokes
// them, makes the admin token, and finds the team and rights of a request's key; it enforces no
// limits.
//
// A key is shown once, when it is made; at rest there is only
// its HMAC-SHA256 under a key of its own that lies in a file beside, so that a
// copy of keys.json alone is worth nothing. A look-up hashes what the client
// sent and finds the hash in a map: an attacker who does not know the HMAC key
// cannot steer what is compared, so the time tells nothing; the compare itself
// is constant-time all the same.
//
// The file admin-token is made at first start.
package auth
