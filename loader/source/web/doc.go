// Package web is the loader's source for HTTPS servers: it lists a model's folder by SHA256SUMS or
// its index page, or takes one file of weights, and reads the files; it writes nothing.
//
// # How the files are found
//
// A location that ends in .safetensors or .gguf is that one file. Else the
// first of these that is there says what the folder holds:
//
//	SHA256SUMS        as sha256sum writes it; its digests are then what counts
//	the folder's page as nginx, Apache, Caddy, python -m http.server and Go's
//	                  FileServer list one, in HTML or JSON; folders below it too
//
// Every file is asked for its size and version (HEAD).
//
// # Versions
//
// A strong ETag is pinned with If-Match; without one Last-Modified is, with
// If-Unmodified-Since, and both are compared in every answer. A server that
// gives neither cannot say that a file changed while it was read: its files are
// taken only if SHA256SUMS has their digest.
//
// A server without ranges is read whole, where the file is small; large files
// would be fetched once per block.
//
// Package httpsource limits the addresses it may point at. Redirects are followed, a
// few, https to https.
package web
