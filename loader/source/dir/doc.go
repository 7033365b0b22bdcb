// Package dir is the loader's source for a folder on this machine: it lists and opens the files of
// a model, which are used where they lie, and writes engines' compile caches there.
//
// The folder is the user's; what is in it may have come from anywhere. So a link is
// followed only while what it leads to lies inside the folder, or is a blob of the same
// repository in the cache of the Hugging Face hub: models--ORG--NAME/snapshots/REV holds
// links into models--ORG--NAME/blobs. Files are opened below the resolved folder, so that
// no link which is swapped later leads out of it. Devices are not opened. A file that
// cannot be used is an error where an engine needs it; else it is left out, and named.
package dir
