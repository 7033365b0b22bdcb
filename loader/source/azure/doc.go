// Package azure reads models from Azure Blob Storage. It is the only importer
// of its SDK, which lists, signs and knows identities; ranges go through the
// SDK's own pipeline with its retries off, because the loader retries.
//
// # Where credentials come from
//
// From the environment, by the names Azure's own tools use, first match wins:
//
//	AZURE_STORAGE_CONNECTION_STRING          with AccountKey or SharedAccessSignature; its BlobEndpoint is used
//	AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY
//	AZURE_STORAGE_SAS_TOKEN                  with AZURE_STORAGE_ACCOUNT, or for any account without it
//	azidentity's default chain               environment, workload identity, managed identity, az login
//
// One that names another account than the source is passed over: the key of
// one account must not be sent to another. Nothing secret is in a source, a
// plan, an error or a log line; errors of the SDK and of net/http print URLs,
// queries included, so none of them is passed on as it is.
//
// # Tokens that end
//
// A token is renewed five minutes before its end. The file of a federated
// token (workload identity) is read again at least every ten minutes, and at
// once when the service refused what was made of it: the loader then calls
// Refresh, once.
//
// # Versions
//
// The ETag of the listing is pinned with If-Match on every range, and the
// answer is believed only if it is 206 with the very Content-Range that was
// asked for: a proxy that drops the header would otherwise give the file's
// beginning in place of its middle.
package azure
