package cli

import (
	"bufio"
	"context"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

func (m modelVerbs) logs() *cobra.Command {
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use: "logs NAME|REPLICA", Short: "What a model's engine says", GroupID: "own",
		Args: kit.ExactArgs("the name of a model or the id of a replica"),
		Example: `  thaw logs tiny
  thaw logs tiny --follow --tail 20`,
		ValidArgsFunction: m.completeNames,
		RunE: m.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
			id, err := m.replicaOf(ctx, cl, args[0])
			if err != nil {
				return err
			}
			r, err := cl.Logs(ctx, id, tail, follow)
			if err != nil {
				return err
			}
			defer r.Close()
			if err = m.copyLines(r); err == nil && follow {
				m.Remark("replica %s has ended; thaw logs %s -f follows the next one", id, args[0])
			}
			return err
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on as more comes")
	cmd.Flags().IntVar(&tail, "tail", 200, "print the last N lines first")
	return m.asksKnative(cmd)
}

// replicaOf is the newest replica of a function, or the one of that id.
func (m modelVerbs) replicaOf(ctx context.Context, cl *api.Client, word string) (string, error) {
	all, err := cl.Replicas(ctx)
	if err != nil {
		return "", err
	}
	if i := slices.IndexFunc(all, func(r functions.Replica) bool { return r.ID == word }); i >= 0 {
		return word, nil
	}
	name, err := m.name(ctx, cl, word)
	if err != nil {
		// It may be a replica that has ended: the server knows.
		if strings.ContainsAny(word, "0123456789") && !strings.Contains(word, "/") {
			return word, nil
		}
		return "", err
	}
	var newest functions.Replica
	for _, r := range all {
		if r.Function == name.String() && (newest.ID == "" || r.Since.After(newest.Since)) {
			newest = r
		}
	}
	if newest.ID != "" {
		return newest.ID, nil
	}
	// None runs: the last cold start names the one that did.
	f, err := cl.Function(ctx, name)
	if err != nil {
		return "", err
	}
	if f.Kind == functions.KindRouter || f.Kind == functions.KindRemote || f.Kind == functions.KindComposition {
		return "", kit.Usage("thaw describe "+tables.ShortName(name.String()), "%s is a %s: it has no engine, so no log", name, f.Kind)
	}
	if f.ColdStart != "" {
		if t, err := cl.ColdStart(ctx, f.ColdStart); err == nil && t.Replica != "" {
			return t.Replica, nil
		}
	}
	return "", &kit.Error{Exit: kit.ExitNotFound, What: name.String() + " has no replica, so it says nothing",
		Hint: "thaw wake " + tables.ShortName(name.String()) + " starts one"}
}

// copyLines passes text on; what would command the terminal is spelled out.
func (p printer) copyLines(r io.Reader) error {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			if p.OutTTY {
				line = kit.Readable(strings.TrimSuffix(line, "\n")) + "\n"
			}
			if _, err := io.WriteString(p.Out, line); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
