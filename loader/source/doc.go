// Package source holds the words that the loader and the rooms that read
// weights from somewhere share: a file of a plan, the rule for names, the list
// of types that may be staged, and the error that says what went wrong and how
// to put it right.
//
// It is the contract between loader (which stages) and loader/source/dir,
// loader/source/azure and their like (which read), so that none of them has to import
// another. It imports the standard library only.
//
// Two decisions stand here because everyone behind this door relies on them.
// Names come from a listing that somebody else wrote: a name that would leave
// the folder is an error, not something to clean up. And only formats that
// cannot carry code are staged: a pickle beside the weights never reaches the
// disk of a GPU host, unless the model file names it (Globs). Then who may write
// the source may run code on the host; nothing else names it.
package source
