// Command release builds a release of thaw in a folder: the programs, a list of the modules
// in each with their licences (SPDX 2.3), the Helm chart with the digest of the image, and
// the checksums of all.
//
// The same commit, version and Go release give the same bytes: nothing in the folder
// depends on the time, the machine's name or the folder of the sources. A program built
// with cgo depends on the C compiler too.
package main
