package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// LocalStore is the store of checkpoints below a data folder of this machine, for
// verbs that do without a server.
type LocalStore interface {
	functions.Store
	Close()
}

type LocalStoreOptions struct {
	Data   string
	Budget functions.Bytes // 0: all the disk has
	// Peers are URLs of nodes that serve blocks; Certs is a folder with the certificate that
	// authenticates to them.
	Peers []string
	Certs string
	Log   io.Writer // for remarks
}

// resumeHint is the hint after an interrupted download.
const resumeHint = "what has arrived stays; the same command goes on from there"

// jsonLines: every line of progress is for a program.
func (p printer) jsonLines() bool { return p.Output == "json" }

func (w weightVerbs) pull() *cobra.Command {
	var ask api.PrefetchRequest
	var folder string
	var o LocalStoreOptions
	cmd := &cobra.Command{
		Use: "pull SOURCE|NAME", Short: "Download a model's weights to this machine or to a server's node", GroupID: "use",
		Args: kit.ExactArgs("a source or the name of a model"),
		Long: `Download a model's weights into a store: verified, resumable, published whole or not
at all. The last line on stdout is the folder that holds them under their own
names.

With --data DIR they come into DIR/store on this machine, and no server is
needed: an init container or a script may do this. A server may use the same
DIR meanwhile. Without --data a server is asked (thaw prefetch says more).

SOURCE is az://ACCOUNT/CONTAINER/PREFIX or another URL, or a path that begins
with / or a dot. NAME is a function of the server; with --data it is one of the
folder --functions names, or of what was deployed into DIR.

Weights (safetensors, GGUF), configs, tokenizers and chat templates are brought;
what else is there is named once and left, unless spec.files of the model file or
--files names it. Code that a model brings with it runs on this machine.

Interrupted or killed, the same command goes on from where it was.`,
		Example: `  thaw pull az://acct/models/llama --data /var/lib/thaw
  thaw pull ml/llama --data /var/lib/thaw --functions functions
  thaw pull hf://org/model --files '*.py' --data /var/lib/thaw
  thaw pull az://acct/models/llama --data /w -o json | tee progress.ndjson
  thaw pull az://acct/models/llama --data /w --peer https://gpu-1:9000 --certs /var/lib/thaw-agent/identity
  vllm serve "$(thaw pull -q az://acct/models/llama --data /w)"
  thaw pull ml/llama`,
		ValidArgsFunction: w.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := w.requireOutput("table", "json", "name"); err != nil {
				return err
			}
			if !cmd.Flags().Changed("data") {
				if o.Budget != 0 || folder != "" || len(o.Peers) > 0 || o.Certs != "" {
					return kit.Usage("thaw pull "+functions.Clip(args[0])+" --data DIR",
						"--store, --functions, --peer and --certs are for a pull with --data")
				}
				return w.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
					return w.requestPrefetch(ctx, cl, args[0], ask)
				})(cmd, args)
			}
			return w.pullHere(cmd.Context(), o, args[0], folder, ask)
		},
	}
	prefetchFlags(cmd, &ask)
	cmd.Flags().StringVar(&folder, "functions", "", "with --data: folder of model files that NAME is looked up in [THAW_FUNCTIONS]")
	cmd.Flags().TextVar(&o.Budget, "store", functions.Bytes(0), "with --data: the most the store may take; 0 is all the disk has")
	cmd.Flags().StringArrayVar(&o.Peers, "peer", nil,
		"with --data: URL of a node that serves its blocks, https://HOST:PORT; may be repeated; the source is asked for the rest")
	cmd.Flags().StringVar(&o.Certs, "certs", "",
		"with --peer: folder with ca.crt, tls.crt and tls.key of a node, such as DATA/identity of an agent")
	return cmd
}

// pullHere is pull with --data: the store is on this machine.
func (w weightVerbs) pullHere(ctx context.Context, o LocalStoreOptions, word, folder string, ask api.PrefetchRequest) error {
	if ask.Node != "" {
		return kit.Usage("leave --data out to ask a server", "--node is a server's; --data is this machine")
	}
	if len(o.Peers) > 0 && o.Certs == "" {
		return kit.Usage("--certs DIR: DATA/identity of an agent", "--peer wants the certificate that nodes show each other")
	}
	if err := kit.CheckPeers(o.Peers); err != nil {
		return err
	}
	return w.withLocalStore(ctx, o, func(ctx context.Context, s LocalStore) error {
		r, err := w.localRequest(ctx, word, folder)
		if err != nil {
			return err
		}
		if len(ask.Files) > 0 && !isSource(word) {
			return kit.Usage("spec.files of its model file", "--files goes with a SOURCE; a model says itself which files it needs")
		}
		if p := functions.CheckPatterns("--files", ask.Files); len(p) > 0 {
			return kit.Usage(p[0].Hint, "%s: %s", p[0].Path, p[0].Message)
		}
		r.Digest, r.Pin, r.Files = ask.Digest, ask.Pin, append(r.Files, ask.Files...)
		return w.showTransfer(ctx, displayName(word), func(report func(functions.StoreProgress)) error { return s.Prefetch(ctx, r, report) })
	})
}

func prefetchFlags(cmd *cobra.Command, ask *api.PrefetchRequest) {
	cmd.Flags().StringVar(&ask.Node, "node", "", "node of the server; the one with the most room when not given")
	cmd.Flags().StringVar(&ask.Digest, "digest", "", "sha256:… that it must have")
	cmd.Flags().StringArrayVar(&ask.Files, "files", nil,
		"of a SOURCE: pattern of files to bring beside weights, configs and tokenizers, such as 'custom/*.py'; may be repeated")
	cmd.Flags().BoolVar(&ask.Pin, "pin", false, "keep it from being evicted (thaw cache unpin)")
}

func (w weightVerbs) prefetch() *cobra.Command {
	var ask api.PrefetchRequest
	cmd := &cobra.Command{
		Use: "prefetch NAME|SOURCE", Short: "Download a model's weights to a node ahead of requests", GroupID: "use",
		Args: kit.ExactArgs("the name of a model or a source"),
		Long: `Download a model's weights into the store of a node of the server, for its next
start. No engine starts. An interrupt cancels the download; what has arrived stays.`,
		Example: `  thaw prefetch ml/llama
  thaw prefetch ml/llama --node gpu-7 --pin
  thaw prefetch az://acct/models/llama -o json`,
		ValidArgsFunction: w.completeNames,
		RunE: w.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
			if err := w.requireOutput("table", "json", "name"); err != nil {
				return err
			}
			return w.requestPrefetch(ctx, cl, args[0], ask)
		}),
	}
	prefetchFlags(cmd, &ask)
	return cmd
}

// requireOutput refuses a form of output that a verb has not.
func (p printer) requireOutput(known ...string) error {
	if !slices.Contains(known, p.Output) {
		return kit.Usage("one of "+strings.Join(known, ", "), "%q is no form of output", functions.Clip(p.Output))
	}
	return nil
}

// isSource reports whether word is a source: it has a scheme, or is written as a path.
func isSource(word string) bool {
	return strings.Contains(word, "://") || strings.HasPrefix(word, "file:") || strings.HasPrefix(word, ".") || strings.HasPrefix(word, "~") ||
		filepath.IsAbs(word)
}

// displayName is a source or a name where the line has to hold its progress too.
func displayName(word string) string {
	if isSource(word) {
		if base := path.Base(strings.TrimRight(word, "/")); base != "." && base != "/" {
			return functions.Clip(base)
		}
	}
	return functions.Clip(word)
}

// requestPrefetch prefetches what a word names on a server, and shows the progress.
func (w weightVerbs) requestPrefetch(ctx context.Context, cl *api.Client, word string, ask api.PrefetchRequest) error {
	switch {
	case !isSource(word):
		name, err := w.name(ctx, cl, word)
		if err != nil {
			return err
		}
		ask.Model = name.String()
	case strings.HasPrefix(word, "."):
		return kit.Usage("the whole path, or thaw pull "+functions.Clip(word)+" --data DIR for this machine",
			"a server does not know which folder %s is in", functions.Clip(word))
	default:
		ask.Source = word
	}
	return w.showTransfer(ctx, displayName(word), func(report func(functions.StoreProgress)) error { return cl.Prefetch(ctx, ask, report) })
}

// withLocalStore does something with the store below --data.
func (w weightVerbs) withLocalStore(ctx context.Context, o LocalStoreOptions, do func(context.Context, LocalStore) error) error {
	if w.keys.data == "" {
		return kit.Usage("--data DIR", "--data is empty")
	}
	if w.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.timeout)
		defer cancel()
	}
	data, err := filepath.Abs(w.keys.data)
	if err != nil {
		return err
	}
	o.Data, o.Log = data, w.Err
	s, err := w.programs.OpenStore(o)
	if err != nil {
		return storeExit(err)
	}
	defer s.Close()
	err = do(ctx, s)
	if errors.Is(err, context.DeadlineExceeded) {
		return &kit.Error{Exit: kit.ExitTimeout, What: "not done within " + w.timeout.String(), Hint: resumeHint}
	}
	return storeExit(err)
}

// localRequest is what a word means on this machine: a source, or a model of a folder
// or of what was deployed here.
func (w weightVerbs) localRequest(ctx context.Context, word, folder string) (functions.PrefetchRequest, error) {
	var r functions.PrefetchRequest
	if isSource(word) {
		dir, err := os.Getwd()
		return functions.PrefetchRequest{Source: word, Dir: dir}, err
	}
	name, err := functions.ParseName(word, functions.DefaultTeam)
	if err != nil {
		if message, hint := functions.CheckSource(word); message != "" {
			return r, kit.Usage(hint, "%s", message)
		}
		return r, kit.Usage("a URL such as hf://ORG/REPO, a path that begins with / or a dot, NAME or TEAM/NAME", "%v", err)
	}
	folder = cmp.Or(folder, w.programs.Getenv("THAW_FUNCTIONS"))
	deployed := filepath.Join(w.keys.data, "functions")
	if _, err := os.Stat(deployed); err != nil {
		deployed = ""
	}
	var names []string
	for _, dir := range []string{folder, deployed} {
		if dir == "" {
			continue
		}
		cat, err := catalog.Open(catalog.Options{Folder: dir})
		if err != nil {
			return r, &kit.Error{Exit: kit.ExitUsage, What: "the model files", Err: err, Hint: "--functions DIR"}
		}
		if m := cat.Model(name); m != nil {
			return functions.PrefetchRequest{Source: m.Spec.Source, Dir: m.Dir, Files: m.Spec.StagedFiles()}, nil
		}
		for _, p := range cat.Problems().Wrong() {
			w.Remark("%v", p)
		}
		for _, m := range cat.Models() {
			names = append(names, m.FullName().Short())
		}
	}
	hint := kit.DidYouMean(name.Short(), names, 3, "give the source itself, or --functions DIR with its model file")
	return r, &kit.Error{Exit: kit.ExitNotFound, What: "no model file here says what " + name.Short() + " is", Hint: hint}
}

// showTransfer runs something that reports its progress, shows that, and prints what
// came of it.
func (w weightVerbs) showTransfer(ctx context.Context, what string, run func(report func(functions.StoreProgress)) error) error {
	l := w.NewProgressLine()
	defer l.Clear()
	var last, bad functions.StoreProgress
	note := ""
	enc := json.NewEncoder(w.Out)
	err := run(func(p functions.StoreProgress) {
		last = p
		if p.Error != nil && bad.Error == nil {
			bad = p
		}
		if p.Note != "" && p.Note != note {
			if note = p.Note; !w.jsonLines() {
				l.Clear()
				w.Remark("%s", kit.Plain(note))
			}
		}
		if w.jsonLines() {
			_ = enc.Encode(p) // a reader that went away gets the failure at the end
			return
		}
		if p.Over() {
			l.Clear()
			if p.State == "ready" {
				w.Remark("%s", transferResult(what, p))
			}
			return
		}
		l.Show(p.State+" on "+p.Node, describeStore(what, p))
	})
	l.Clear()
	switch {
	case ctx.Err() != nil:
		w.Remark("%s", resumeHint)
		return ctx.Err()
	case err != nil:
		return err
	case bad.Error != nil:
		return storeExit(bad.Error)
	}
	if !w.jsonLines() && last.Path != "" {
		fmt.Fprintln(w.Out, kit.Plain(last.Path))
	}
	return nil
}

// transferResult is what became of a staging, in a line for people.
func transferResult(what string, p functions.StoreProgress) string {
	s := what + " ready"
	if p.Node != "" {
		s += " on " + p.Node
	}
	switch {
	case p.InPlace:
		return s + ": a folder of that machine, used where it is"
	case p.Resumed > 0 && p.Resumed < p.Total:
		return fmt.Sprintf("%s: %s, %s of them from an earlier try", s, p.Total.Human(), p.Resumed.Human())
	}
	return s + ": " + p.Total.Human()
}

func describeStore(what string, p functions.StoreProgress) string {
	parts := []string{what, p.State}
	if p.Node != "" {
		parts = append(parts, "on "+p.Node)
	}
	if p.Total > 0 && p.State != "verifying" {
		parts = append(parts, kit.Bar(p.Percent), fmt.Sprintf("%d%%", p.Percent), p.Done.Human()+"/"+p.Total.Human())
		if p.Rate > 0 {
			parts = append(parts, functions.Bytes(p.Rate).Human()+"/s")
		}
	} else if p.Total > 0 {
		parts = append(parts, p.Total.Human())
	}
	if p.ETA != nil && *p.ETA > 0 {
		parts = append(parts, "eta "+kit.Seconds(p.ETA))
	}
	return strings.Join(parts, " ")
}

// storeExit gives an error of a store its exit code and a hint.
func storeExit(err error) error {
	s, ok := errors.AsType[*functions.StoreError](err)
	if !ok {
		return err
	}
	e := &kit.Error{Exit: kit.ExitFailed, Err: s}
	switch s.Code {
	case "bad_source":
		e.Exit = kit.ExitUsage
	case "source_not_found", functions.CodeNotCached, functions.CodeNoNode:
		e.Exit = kit.ExitNotFound
	case "source_denied":
		e.Exit = kit.ExitDenied
	case "source_unavailable", "source_unstable", functions.CodeUnreachable:
		e.Exit, e.Hint = kit.ExitUnavailable, resumeHint
	case "insufficient_disk":
		e.Hint = "thaw cache ls shows what is there, thaw cache rm makes room"
	}
	return e
}
