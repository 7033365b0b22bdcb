// Package catalog reads and strictly checks YAML files of models, Routers, Remotes, Compositions
// and teams in two folders, keeps the former content of a file that no longer reads, stores
// deployed ones in one of the folders, and notifies of changes; it starts no model.
//
// It is one idea, files to documents: parser, decoder, checks across documents and folders all name
// the file, line and column of what is wrong.
//
// Two folders are merged. The user's (--functions) is read and never
// written; the deployed one (DATA/functions) is written by Put and Delete
// alone, one file a function, whole or not at all. The same name in both, or of
// functions of two kinds, is an error that names both places.
//
// Strict means that everything unexpected is an error: an unknown key, a key
// twice, a value of another type, each with file, line, column, path and the
// nearest right name. A typo in a limit would otherwise be no limit.
//
// A bad edit removes nothing. A file that no longer reads keeps the
// documents it held before, and Problems has the reason; the same for a folder that
// cannot be listed. A file is read once its size and time have stood still for
// one look, because editors write in more than one step, and a half-written
// file can be a valid shorter one.
//
// Only the folder's own .yaml and .yml files are read, and .json files of functions. Folders
// below hold weights and are not searched.
//
// A relative source counts from the folder of its file. A deployed model has no
// such folder: the client resolves the path first (thaw deploy does), and
// Put refuses a relative one.
//
// A Router's intents may name files of examples, read relative to its file and looked at
// for changes as the file itself. What a Router names is checked over the whole catalog: a
// target that can never be chosen is a warning, and the Router works without it.
//
// A file has at most 128 KiB, 6,000 characters that may begin or end a token, and 1,000
// keys a document; what a tenant wrote into a cluster has at most 32 KiB. The lexer runs
// only within these bounds, so no input allocates more than 10 MB (memory_test.go).
//
// No other package imports goccy/go-yaml. Decoding walks the library's syntax tree
// itself, to report all problems at once with places and suggestions; EncodeYAML
// writes YAML itself, because the library writes control characters and texts that
// look like numbers unquoted.
package catalog
