// Package huggingface reads models from the Hugging Face hub, and shows downloaded ones in
// the layout of the hub's own cache.
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
//
// # For engines
//
// View keeps DATA/hf/hub as huggingface_hub lays out its cache: refs, blobs and
// snapshots, so that HF_HUB_OFFLINE=1 HF_HOME=DATA/hf vllm serve ORG/REPO finds a
// model that was staged from hf://. What would be files there are relative
// links into the store: hard links would hold the bytes of a checkpoint that
// the store has evicted, and then the disk is full with nothing left to evict.
// An engine that is started by hand on the view should pin the checkpoint
// (thaw cache pin), or it may be evicted under it.
package huggingface
