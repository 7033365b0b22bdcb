// Package gcs is the loader's source for Google Cloud Storage: it lists and reads the files of
// models with credentials of Google's tools, and writes engines' compile caches there. It uses the
// JSON API, and is the only importer of the library that turns credentials into tokens.
//
//	gs://BUCKET/PREFIX
//
// # Where credentials come from
//
// As Google's own tools look for them, first match wins:
//
//	THAW_GCS_ANONYMOUS=true            anonymous access
//	STORAGE_EMULATOR_HOST              an emulator, without credentials
//	GOOGLE_APPLICATION_CREDENTIALS     a service account's key, or the description of a federated identity
//	gcloud's application default credentials
//	the metadata server                a machine's or a pod's identity
//	nothing                            public buckets
//
// A file is read again when its token is refused: keys are rotated.
//
// # Writing
//
// Compile caches of engines are published beside their weights, if the operator
// enables it. Only then is a token with the right to write requested (the scope
// devstorage.read_write); it needs Storage Object User on PREFIX/_thaw/.
//
// # Versions and digests
//
// The generation of the listing is demanded of every range
// (ifGenerationMatch) and compared in the answer. The bucket keeps a CRC32C of
// every object, and that is what the whole file is held against. Objects with
// a content encoding are refused: their size is not the size of what comes.
package gcs
