package tables

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// Watch prints what there is, and then a line for every change, until ctx ends.
func Watch[T any](ctx context.Context, c *kit.Terminal, cl *api.Client, k kit.Kind[T], keep func(T) bool) error {
	var widths []int
	var first []T
	synced := false
	show := func(ch api.Change[T], items ...T) error {
		switch c.Output {
		case "json":
			return json.NewEncoder(c.Out).Encode(ch)
		case "yaml":
			if _, err := io.WriteString(c.Out, "---\n"); err != nil {
				return err
			}
			return c.Encode(ch)
		case "name":
			for _, it := range items {
				fmt.Fprintln(c.Out, kit.Plain(k.Name(it)))
			}
		default:
			kit.PrintTable(c.Out, k, items, c.Output == "wide", &widths)
		}
		return nil
	}
	var printing error
	err := api.Watch(ctx, cl, k.Path, func(ch api.Change[T]) bool {
		if ch.Item != nil && keep != nil && !keep(*ch.Item) {
			return true
		}
		programs := c.Output == "json" || c.Output == "yaml"
		switch {
		case ch.Event == "synced":
			synced = true
			if !programs {
				printing = show(ch, first...)
			}
		case ch.Event == "removed":
			if programs {
				printing = show(ch)
			} else if c.Output != "name" {
				fmt.Fprintln(c.Out, kit.Plain(ch.Name), "is gone")
			}
		case synced || programs:
			printing = show(ch, *ch.Item)
		default:
			first = append(first, *ch.Item)
		}
		return printing == nil
	})
	return cmp.Or(printing, err)
}
