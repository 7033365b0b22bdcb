package nodestore

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source/huggingface"
	"github.com/thaw-dev/thaw/loader/store"
)

// hubView shows checkpoints of Hugging Face at DATA/hf, in the layout of its own cache, for
// engines and tools that are started by hand.
type hubView struct {
	view  *huggingface.View
	store *store.Store
	log   *slog.Logger
}

func newHubView(data string, st *store.Store, from map[string]loader.Source, log *slog.Logger) *hubView {
	planned, _ := from["hf"].(*huggingface.Source)
	return &hubView{view: huggingface.NewView(filepath.Join(data, "hf"), planned), store: st, log: log}
}

// sync updates the view to the store's contents. Nothing depends on the view, so an error
// is only logged.
func (v *hubView) sync() {
	list, err := v.store.List()
	if err == nil {
		all := make([]huggingface.Checkpoint, 0, len(list))
		for _, e := range list {
			c := huggingface.Checkpoint{Source: e.Source, Path: e.Path}
			for _, f := range e.Files {
				c.Files = append(c.Files, f.Name)
			}
			all = append(all, c)
		}
		err = v.view.Sync(all)
	}
	if err != nil {
		v.log.Warn("the Hugging Face view is not up to date", "error", err)
	}
}

const (
	viewPollEvery = time.Second // how often the count of stagings is checked
	viewSyncEvery = time.Minute // how often the view is synced without new stagings
)

// run keeps the view in sync until ctx ends. staged returns the count of finished stagings.
func (v *hubView) run(ctx context.Context, staged func() int64) {
	t := time.NewTicker(viewPollEvery)
	defer t.Stop()
	had, last := int64(-1), time.Time{}
	for {
		if now := staged(); now != had || time.Since(last) > viewSyncEvery {
			v.sync()
			had, last = now, time.Now()
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}
