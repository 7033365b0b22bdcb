// Package enginecache keeps what engines compile (kernels, graphs) on the node's disk for later
// starts of the same model, evicts the least recently used, and can share it through the model's
// source. Sharing is for operators who trust everyone who may write to the sources: a compile cache
// is code.
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
//	_thaw/cache/<key>.json    manifest: the key again, the digest of the pack
//	_thaw/cache/<sha256>.tar  the files
//
// # Decisions
//
// A key is (model digest, engine, version, GPU, flags). It is a hash, and what
// was hashed is written beside it and compared: a cache is never used for
// anything but what it was made for.
//
// A cache is code that the engine runs. One from a source is as trustworthy as the
// users who may write there, which does not matter for weights in formats without code.
// So the agent fetches and publishes caches only with --engine-caches trust-source; by
// default they stay on the node, where the same user made them. Digests protect against
// damage and partial files, not against users who may write both files.
//
// A pack is complete or absent: the manifest is written after it, and the extracted
// folder is renamed into place after the digest matched. Names are
// checked, links and devices are refused, bytes and files are bounded.
package enginecache
