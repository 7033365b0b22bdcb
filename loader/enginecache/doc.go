// Package enginecache keeps what engines compile (kernels, graphs) beside the
// checkpoints that it was compiled for, so that the second start of a model does
// not compile again, on this node or, where the operator trusts its sources, on
// any.
//
//	DIR/<key>/            one cache, used by one engine or several at once
//	    key.json          what it is for, in plain words
//	    lease             shared lock = in use; exclusive lock = being evicted
//	    cache/            what the engine is given
//	DIR/shared/<engine>/  what depends on no model, where it has no other place
//	DIR/.new-…            half made; cleared at the next Open
//
// Beside the weights, at the source:
//
//	_thaw/cache/<key>.json    manifest: the key again, every file with its sha256
//	_thaw/cache/<sha256>.tar  the files
//
// # Decisions at this door
//
// A key is (model digest, engine, version, GPU, flags). It is a hash, and what
// was hashed is written beside it and compared: a cache is never used for
// anything but what it was made for.
//
// A cache is code that the engine runs. One that comes from a source is as
// trustworthy as who may write there, which for weights in formats that carry no
// code did not matter before. So the agent fetches and publishes caches only
// when it is told to (--engine-caches trust-source); by default they stay on the
// node, where they were made by the same user. Digests protect against damage
// and halves, not against who may write both files.
//
// A pack is whole or not there: the manifest is written after it, and the
// extracted folder is renamed into place after every digest held. Names are
// checked, links and devices are refused, bytes and files are bounded.
package enginecache
