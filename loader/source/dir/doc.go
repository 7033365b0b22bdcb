// Package dir reads models from a folder on this machine, which the loader
// uses where it is.
//
// The folder is the user's; what is in it may have come from anywhere. So
// links are not followed and devices are not opened: a name that is a link is
// an error that says so, not a file that is silently left out. There is one
// exception, because half of all folders with weights look like that: in the
// cache of the Hugging Face hub, models--ORG--NAME/snapshots/REV holds links
// into models--ORG--NAME/blobs, and those are followed, no further than
// models--ORG--NAME.
package dir
