// Package httpsource is what all sources that speak HTTP have in common: a transport
// made for many long ranges, a guard that keeps a source from making this
// machine call addresses it should not, the reading of an answer to a ranged
// GET, and errors that hold no URL.
//
// # Why a range is not believed
//
// An answer counts only if it is 206, names in Content-Range exactly the bytes
// that were asked for of a file of exactly the planned size, is not encoded,
// and carries the planned ETag. A proxy that drops the Range header, a cache
// that mixes versions and a server that was told to compress would otherwise
// put wrong bytes in the right place.
//
// # Where a source may point
//
// Sources are written by whoever may deploy a model, and what answers decides
// where a redirect leads. So a dial goes to the address that was checked, not
// to a name that resolves anew: public unicast addresses, and nothing else,
// unless the machine's operator named the host: in THAW_SOURCE_HOSTS (hosts,
// .suffixes, addresses or networks, separated by commas) or as the endpoint of
// a cloud (AWS_ENDPOINT_URL, STORAGE_EMULATOR_HOST, HF_ENDPOINT). Where a proxy
// is set, it decides what is reached; then only literal addresses are checked.
//
// # Errors
//
// net/http puts the whole URL into its errors, and a URL may hold a signature.
// Nothing of such a text is passed on: only what kind of thing went wrong.
package httpsource
