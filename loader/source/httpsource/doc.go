// Package httpsource has what HTTP sources share: bucket locations, listings and uploads, a client
// for many long ranges, a dial that refuses internal addresses (SSRF; also for Remotes), checks of
// each answer, and errors without URLs.
//
// # Checks of a range
//
// An answer counts only if it is 206, names in Content-Range exactly the bytes
// that were asked for of a file of exactly the planned size, is not encoded,
// and carries the planned ETag. A proxy that drops the Range header, a cache
// that mixes versions and a server that was told to compress would otherwise
// put wrong bytes in the right place.
//
// # Where a source may point
//
// Any user who may deploy a model names a source, and the server decides where a
// redirect leads. So a connection goes to the address that was checked, not to a name
// that is resolved again: public unicast addresses only, unless the operator of the
// machine named the host: in THAW_SOURCE_HOSTS (hosts,
// .suffixes, addresses or networks, separated by commas) or as the endpoint of
// a cloud (AWS_ENDPOINT_URL, STORAGE_EMULATOR_HOST, HF_ENDPOINT). Where a proxy
// is set, it decides what is reached; then only literal addresses are checked. Names of
// private networks (one label, .local, .svc) are refused before any look-up, unless a network
// is allowed.
//
// # Errors
//
// net/http puts the whole URL into its errors, and a URL may hold a signature. None of
// that text is passed on, only the kind of failure.
package httpsource
