// Package huggingface is the loader's source for the Hugging Face hub: it resolves hf://ORG/REPO to
// one commit, and lists and reads the files of that model; it writes nothing.
//
// # From the hub
//
//	hf://ORG/REPO                 the branch main
//	hf://ORG/REPO@REV             a branch, a tag, refs/pr/N or a commit
//	hf://ORG/REPO[@REV]/FOLDER    what lies below a folder, or one file of weights
//
// A revision is resolved to a commit once, when a staging is planned; every
// byte is then read of that commit, whatever the branch does meanwhile. A file
// that git-lfs keeps has its sha256 in the listing, and the loader holds what
// came against it. The version of a file is its object id, not the commit: a
// commit that changes the README does not bring the weights anew.
//
// Large files are redirected to a CDN with a signature in the address. The
// token goes to the hub alone: redirects are followed by hand, the address is
// kept for as long as it works, and asked for anew when it does not.
//
// HF_ENDPOINT names a mirror, HF_TOKEN or HF_TOKEN_PATH (or the file that the
// hub's own login writes) holds the token; it is read again at every plan.
package huggingface
