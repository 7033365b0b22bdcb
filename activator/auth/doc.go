// Package auth creates, stores and revokes API keys, and finds the team and the rights of the
// key that a request sends.
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
