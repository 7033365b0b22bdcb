// Package source has what all sources of weights share: the rules which listed files may be staged,
// the plan of a download, and errors that say how to fix them; it reads no source itself. A source
// implements the interface loader.Source (loader/source/dir, loader/source/azure, …). The package
// keeps the sources from importing each other, and imports the standard library and functions only.
//
// Names come from a listing that is not trusted: a name that would leave the folder is
// an error, not something to clean up. Only formats that cannot carry code are staged:
// a pickle beside the weights never reaches the disk of a GPU host, unless the model
// file names it (Globs). Then a user who may write the source may run code on the host.
package source
