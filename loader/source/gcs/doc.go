// Package gcs reads models from Google Cloud Storage, over its JSON API. It is
// the only importer of the library that turns credentials into tokens.
//
//	gs://BUCKET/PREFIX
//
// # Where credentials come from
//
// As Google's own tools look for them, first match wins:
//
//	THAW_GCS_ANONYMOUS=true            nothing is shown
//	STORAGE_EMULATOR_HOST              an emulator, which wants nothing
//	GOOGLE_APPLICATION_CREDENTIALS     a service account's key, or the description of a federated identity
//	gcloud's application default credentials
//	the metadata server                a machine's or a pod's identity
//	nothing                            public buckets
//
// A file is read again when its token is refused: keys are rotated.
//
// # Writing
//
// Engines' compile caches are published beside the weights they are for, where
// an operator said so. Only then is a token asked for that may write (the scope
// devstorage.read_write); it takes Storage Object User on PREFIX/_thaw/.
//
// # Versions and digests
//
// The generation of the listing is demanded of every range
// (ifGenerationMatch) and compared in the answer. The bucket keeps a CRC32C of
// every object, and that is what the whole file is held against. Objects with
// a content encoding are refused: their size is not the size of what comes.
package gcs
