// Package s3 is the loader's source for Amazon S3 and compatible servers: it lists and reads the
// files of models with credentials of AWS's tools, and writes engines' compile caches there. It is
// the only importer of the library whose credential chain and signature it uses; requests, listings
// and ranges are made here, because a range needs no more than a signed GET and the library's
// client costs every start of the program twice as much as this package.
//
//	s3://BUCKET/PREFIX
//
// # Where credentials come from
//
// By the names Amazon's own tools use, first match wins:
//
//	THAW_S3_ANONYMOUS=true                          nothing is signed
//	AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
//	~/.aws/credentials                              AWS_SHARED_CREDENTIALS_FILE, AWS_PROFILE; credential_process too
//	~/.aws/config                                   AWS_CONFIG_FILE, AWS_PROFILE; credential_process too
//	AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN       a service account's role; the file is read again each time
//	AWS_CONTAINER_CREDENTIALS_*                     a task's role
//	the instance's role                             of AWS_EC2_METADATA_SERVICE_ENDPOINT, unless AWS_EC2_METADATA_DISABLED=true
//	nothing                                         public buckets
//
// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL names a compatible server, which is
// then asked with the bucket in the path (THAW_S3_STYLE=virtual puts it into the
// host's name). AWS_REGION or AWS_DEFAULT_REGION is the region to begin with;
// if the bucket is elsewhere, the answer names its region, which is tried once.
// Where the environment names none, the profile's endpoint_url (of its services, for
// s3, first) and region count; AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true ignores both.
//
// # Writing
//
// Compile caches of engines are published beside their weights, if the operator
// enables it; that needs s3:PutObject on PREFIX/_thaw/*. Nothing else is written.
//
// # Versions and digests
//
// The ETag of the listing is pinned with If-Match on every range, and compared
// in the answer, because not every compatible server knows the header. Files of
// weights are asked for the digests the bucket keeps (HEAD): CRC64NVME, CRC32C
// or sha256 of the whole object; else the ETag where it is an MD5, which it is
// not for objects in parts or under a key of one's own.
package s3
