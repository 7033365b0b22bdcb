package nodestore

import (
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/loader/source/gcs"
	"github.com/thaw-dev/thaw/loader/source/huggingface"
	"github.com/thaw-dev/thaw/loader/source/s3"
	"github.com/thaw-dev/thaw/loader/source/web"
)

// OpenSources returns all sources that a node can stage from, by scheme; end closes their
// connections.
func OpenSources() (all map[string]loader.Source, end func()) {
	blobs, buckets, objects := azure.New(azure.Options{}), s3.New(s3.Options{}), gcs.New(gcs.Options{})
	repositories, pages := huggingface.New(huggingface.Options{}), web.New(web.Options{})
	all = map[string]loader.Source{"file": dir.Source{}, "az": blobs, "s3": buckets, "gs": objects, "hf": repositories, "https": pages}
	return all, func() {
		blobs.Close()
		buckets.Close()
		objects.Close()
		repositories.Close()
		pages.Close()
	}
}
