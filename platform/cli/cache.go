package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

func (w weightVerbs) cache() *cobra.Command {
	cmd := kit.VerbGroup(&cobra.Command{
		Use: "cache VERB", Short: "See and change what is in the stores of weights, and drop cached answers", GroupID: "run",
		Long: `See and change what is in the stores of weights: of all nodes of a server, of one
(--node), or with --data DIR of DIR/store on this machine, for which no server
is needed.

A checkpoint is named by its digest, by the first digits of it, by its source,
or by the last part of that. A download that ended early and that no process goes
on with is listed as unfinished: the next one of that source goes on from there,
and rm removes it.`,
		Example: `  thaw cache ls
  thaw cache verify --all
  thaw cache rm 5f0c9a
  thaw cache pin llama --node gpu-7
  thaw cache ls --data /var/lib/thaw -o json`,
	})
	var node string
	cmd.PersistentFlags().StringVar(&node, "node", "", "one node of the server")
	cmd.AddCommand(w.cacheLs(&node), w.cacheVerify(&node),
		w.cacheAct(&node, functions.StoreRemove, "rm", "Remove checkpoints that are not in use", "removed"),
		w.cacheAct(&node, functions.StorePin, "pin", "Keep checkpoints from being evicted", "pinned"),
		w.cacheAct(&node, functions.StoreUnpin, "unpin", "Take pins back", "unpinned"), w.cacheForget())
	return cmd
}

// checkpointStores are a server's stores or this machine's, one like the other.
type checkpointStores struct {
	list   func(ctx context.Context) ([]functions.CacheEntry, error)
	change func(ctx context.Context, digest string, act functions.StoreAction) (nodes []string, err error)
	verify func(ctx context.Context, digest string, report func(functions.StoreProgress)) error
}

// serverStores are the stores of a server's node, or of all its nodes with "".
func (w weightVerbs) serverStores(cl *api.Client, node string) checkpointStores {
	return checkpointStores{
		list: func(ctx context.Context) ([]functions.CacheEntry, error) {
			got, err := api.Request[api.Cache](ctx, cl, "GET", "/api/v1/cache?node="+url.QueryEscape(node), nil)
			if len(got.Silent) > 0 {
				w.Remark("no answer from %s", strings.Join(got.Silent, ", "))
			}
			return got.Items, err
		},
		change: func(ctx context.Context, digest string, act functions.StoreAction) ([]string, error) {
			k, err := cl.ChangeCheckpoint(ctx, node, digest, act)
			return k.Nodes, err
		},
		verify: func(ctx context.Context, digest string, report func(functions.StoreProgress)) error {
			return cl.VerifyCheckpoint(ctx, node, digest, report)
		},
	}
}

// withStores makes the body of a verb that does something with the checkpoints, items, of stores.
func (w weightVerbs) withStores(node *string,
	do func(ctx context.Context, s checkpointStores, items []functions.CacheEntry, args []string) error) verbBody {
	return func(cmd *cobra.Command, args []string) error {
		run := func(ctx context.Context, s checkpointStores) error {
			items, err := s.list(ctx)
			if err != nil {
				return err
			}
			return do(ctx, s, items, args)
		}
		if !cmd.Flags().Changed("data") {
			return w.remote(0, func(ctx context.Context, cl *api.Client, _ []string) error {
				return run(ctx, w.serverStores(cl, *node))
			})(cmd, args)
		}
		if *node != "" {
			return kit.Usage("leave --data out to ask a server", "--node is a server's; --data is this machine")
		}
		return w.withLocalStore(cmd.Context(), LocalStoreOptions{}, func(ctx context.Context, s LocalStore) error {
			change := func(ctx context.Context, digest string, act functions.StoreAction) ([]string, error) {
				return []string{""}, s.ChangeCheckpoint(ctx, digest, act)
			}
			return run(ctx, checkpointStores{s.Cached, change, s.VerifyCheckpoint})
		})
	}
}

func shortDigest(digest string) string {
	h := functions.HexOfDigest(digest)
	return h[:min(12, len(h))]
}

func (p printer) cacheKind() kit.Kind[functions.CacheEntry] {
	return kit.Kind[functions.CacheEntry]{Word: "CacheEntry", Columns: []kit.Column[functions.CacheEntry]{
		kit.Col("DIGEST", func(e functions.CacheEntry) string { return shortDigest(e.Digest) }),
		kit.Col("SIZE", func(e functions.CacheEntry) string { return e.Bytes.Human() }),
		kit.Col("NODE", func(e functions.CacheEntry) string { return e.Node }),
		kit.Col("USED", func(e functions.CacheEntry) string { return p.Since(e.LastUsed) + " ago" }),
		kit.Col("STATE", func(e functions.CacheEntry) string {
			var s []string
			if e.InUse {
				s = append(s, "in use")
			}
			if e.Pinned {
				s = append(s, "pinned")
			}
			if e.Unfinished() {
				s = append(s, "unfinished")
			}
			return strings.Join(s, ", ")
		}),
		kit.Col("SOURCE", func(e functions.CacheEntry) string { return e.Source }),
		kit.WideCol("FILES", func(e functions.CacheEntry) string { return fmt.Sprint(e.Files) }),
		kit.WideCol("PATH", func(e functions.CacheEntry) string { return e.Path }),
	}, Name: func(e functions.CacheEntry) string { return e.Digest }}
}

func (w weightVerbs) cacheLs(node *string) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the checkpoints and unfinished downloads, last used first", Args: kit.ExactArgs(),
		Example: `  thaw cache ls
  thaw cache ls --node gpu-7 -o wide
  thaw cache ls -o name`,
		RunE: w.withStores(node, func(_ context.Context, _ checkpointStores, items []functions.CacheEntry, _ []string) error {
			return kit.PrintList(w.Terminal, w.cacheKind(), items)
		}),
	}
}

func matchDigests(items []functions.CacheEntry, words []string) ([]string, error) {
	var out []string
	for _, w := range words {
		var found []string
		var names []string
		hex := strings.TrimPrefix(strings.TrimPrefix(w, "sha256:"), "part:")
		for _, e := range items {
			names = append(names, path.Base(e.Source))
			exactly := e.Source == w || path.Base(e.Source) == w
			if (exactly || len(hex) >= 4 && strings.HasPrefix(functions.HexOfDigest(e.Digest), hex)) && !slices.Contains(found, e.Digest) {
				found = append(found, e.Digest)
			}
		}
		switch len(found) {
		case 0:
			hint := kit.DidYouMean(w, names, 3, "thaw cache ls lists them")
			return nil, &kit.Error{Exit: kit.ExitNotFound, What: "no checkpoint is named " + functions.Clip(w), Hint: hint}
		case 1:
			if !slices.Contains(out, found[0]) {
				out = append(out, found[0])
			}
		default:
			s := functions.ConvertAll(found, func(d string) string { return shortDigest(d) })
			return nil, kit.Usage("name one: "+strings.Join(s, ", "), "%s names more than one checkpoint", functions.Clip(w))
		}
	}
	return out, nil
}

func (w weightVerbs) cacheAct(node *string, act functions.StoreAction, verb, about, done string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " CHECKPOINT...", Short: about, Args: kit.UpToArgs("the digest of a checkpoint", 0),
		Example: "  thaw cache " + verb + " 5f0c9a\n  thaw cache " + verb + " az://acct/models/llama --data /var/lib/thaw",
		RunE: w.withStores(node, func(ctx context.Context, s checkpointStores, items []functions.CacheEntry, args []string) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // a removal deletes files
			defer cancel()
			if act != functions.StoreRemove {
				items = slices.DeleteFunc(items, functions.CacheEntry.Unfinished)
			}
			digests, err := matchDigests(items, args)
			if err != nil {
				return err
			}
			for _, d := range digests {
				nodes, err := s.change(ctx, d, act)
				if err != nil {
					return err
				}
				for _, n := range nodes {
					switch {
					case w.Output == "name":
						fmt.Fprintln(w.Out, d)
					case n == "":
						fmt.Fprintln(w.Out, shortDigest(d), done)
					default:
						fmt.Fprintln(w.Out, shortDigest(d), done, "on", kit.Plain(n))
					}
				}
			}
			return nil
		}),
	}
}

// cacheForget drops answers, which a change of the weights at one source leaves behind.
func (w weightVerbs) cacheForget() *cobra.Command {
	return &cobra.Command{
		Use: "forget FUNCTION...", Short: "Drop the cached answers of models and remotes", Args: kit.UpToArgs("the name of a function", 0),
		Example: "  thaw cache forget small\n  thaw cache forget ml/llama cloud",
		RunE: w.remote(queryTimeout, func(ctx context.Context, cl *api.Client, args []string) error {
			var done []api.ForgottenAnswers
			for _, word := range args {
				name, err := w.name(ctx, cl, word)
				if err != nil {
					return err
				}
				d, err := api.Request[api.ForgottenAnswers](ctx, cl, "DELETE", "/api/v1/cache?function="+name.String(), nil)
				if err != nil {
					return err
				}
				done = append(done, d)
			}
			return kit.PrintList(w.Terminal, kit.Kind[api.ForgottenAnswers]{Word: "ForgottenAnswers", Columns: []kit.Column[api.ForgottenAnswers]{
				kit.Col("NAME", func(d api.ForgottenAnswers) string { return tables.ShortName(d.Function) }),
				kit.Col("DROPPED", func(d api.ForgottenAnswers) string { return fmt.Sprint(d.Dropped) }),
			}, Name: func(d api.ForgottenAnswers) string { return d.Function }}, done)
		}),
	}
}

func (w weightVerbs) cacheVerify(node *string) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "verify CHECKPOINT...", Short: "Read checkpoints again and take out what has rotted",
		Args: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return kit.Usage("thaw cache verify --all", "name checkpoints, or give --all")
			}
			return nil
		},
		Long: `Read every byte of checkpoints again and compare it with what was verified when it
came. What differs is taken out, with every checkpoint that holds it, and is
fetched again when it is next needed. Exits with 1 when anything differed.`,
		Example: `  thaw cache verify 5f0c9a
  thaw cache verify --all -o json`,
		RunE: w.withStores(node, func(ctx context.Context, s checkpointStores, items []functions.CacheEntry, args []string) error {
			items = slices.DeleteFunc(items, functions.CacheEntry.Unfinished)
			if all {
				args = functions.ConvertAll(items, func(e functions.CacheEntry) string { return e.Digest })
			}
			digests, err := matchDigests(items, args)
			if err != nil {
				return err
			}
			var bad error
			l := w.NewProgressLine()
			defer l.Clear()
			enc := json.NewEncoder(w.Out)
			for _, d := range digests {
				err := s.verify(ctx, d, func(p functions.StoreProgress) {
					if p.Error != nil && bad == nil {
						bad = storeExit(p.Error)
					}
					where := shortDigest(d)
					if p.Node != "" {
						where += " on " + p.Node
					}
					switch {
					case w.jsonLines():
						p.Digest = d
						_ = enc.Encode(p)
					case p.State == "ready":
						l.Clear()
						fmt.Fprintln(w.Out, kit.Plain(where), "holds", p.Total.Human()+", as they came")
					case p.State == "failed":
						l.Clear()
						fmt.Fprintln(w.Out, kit.Plain(where), "FAILED")
					default:
						p.Node = "" // where says it
						l.Show(d, describeStore(where, p))
					}
				})
				if err != nil {
					return err
				}
			}
			return bad
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "every checkpoint")
	return cmd
}
