// Package source is the contract between the loader, which stages, and the packages
// that read weights from somewhere (loader/source/dir, loader/source/azure, …): a file
// of a plan, the rules for names and for types that may be staged, and the error that
// tells what went wrong and how to fix it. It keeps those packages from importing each
// other, and imports the standard library and functions only.
//
// Names come from a listing that is not trusted: a name that would leave the folder is
// an error, not something to clean up. Only formats that cannot carry code are staged:
// a pickle beside the weights never reaches the disk of a GPU host, unless the model
// file names it (Globs). Then a user who may write the source may run code on the host.
package source
