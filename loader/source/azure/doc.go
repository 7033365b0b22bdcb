// Package azure is the loader's source for Azure Blob Storage: it lists and reads the files of
// models with credentials from the environment, and writes engines' compile caches there. It is the
// only importer of the SDK (azblob, azidentity), which finds identities, signs, lists, and
// downloads ranges (DownloadStream). The SDK's retries are off, because the loader retries.
//
// # Where credentials come from
//
// From the environment, by the names of Azure's own tools, first match wins:
//
//	AZURE_STORAGE_CONNECTION_STRING          with AccountKey or SharedAccessSignature; its BlobEndpoint is used
//	AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY
//	AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_SAS_TOKEN
//	azidentity's default chain               environment, workload identity, managed identity, az login
//
// A credential of another account than the source's is skipped: the key or the SAS of one
// account must not be sent to another. A SAS without an account is an error. No secret is
// in a source, a plan, an error or a log line; errors of the SDK and of net/http contain
// URLs with their queries, so none of them is passed on as it is.
//
// # Headers
//
// A Shared Key signature covers every x-ms- header, so those for which the SDK has no
// option are set by a policy that runs before the signing one. A service that refuses the
// header that asks for the checksum of a range is read without checksums.
//
// # Tokens that expire
//
// The SDK renews a token before its end. The file of a federated token (workload
// identity) is read again at least every ten minutes, and at once when the service
// refuses the token: the loader then calls Refresh, once.
//
// # Versions
//
// The ETag of the listing is pinned with If-Match on every range, and an answer counts
// only if it is 206 with the requested Content-Range: a proxy that drops the header
// would otherwise return the file's beginning instead of its middle.
package azure
