package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

const manyColdStarts = 1000

func (c *command) get() *cobra.Command {
	words := []string{"functions", "replicas", "nodes", "teams", "coldstarts", "events", "keys"}
	var follow bool
	cmd := &cobra.Command{
		Use: "get KIND [NAME]", Short: "List functions, replicas, nodes, teams, coldstarts, events or keys", GroupID: "own",
		Example: `  thaw get functions
  thaw get nodes -o wide
  thaw get events --watch
  thaw get functions tiny -o yaml`,
		ValidArgs: words,
		Args:      kit.UpToArgs("", 2),
		RunE: c.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
			word := "functions"
			if len(args) > 0 {
				word = args[0]
			}
			if !slices.Contains(words, word) && slices.Contains(words, word+"s") {
				word += "s"
			}
			if !slices.Contains(words, word) {
				hint := "one of " + strings.Join(words, ", ")
				if near := functions.Nearest(word, words, 1); len(near) > 0 {
					hint = "did you mean " + near[0] + "?"
				}
				return kit.Usage(hint, "%q is no kind", functions.Clip(word))
			}
			if word == "functions" && len(args) == 2 && !follow {
				name, err := c.name(ctx, cl, args[1])
				if err != nil {
					return err
				}
				f, err := cl.Function(ctx, name)
				if err != nil {
					return err
				}
				return kit.PrintOne(c.Terminal, c.functionKind(), f)
			}
			var want string
			if len(args) == 2 {
				want = args[1]
			}
			switch word {
			case "functions":
				return showList(ctx, c, cl, c.functionKind(), follow, want, cl.Functions)
			case "replicas":
				return showList(ctx, c, cl, c.replicaKind(), follow, want, cl.Replicas)
			case "nodes":
				return showList(ctx, c, cl, c.nodeKind(), follow, want, cl.Nodes)
			case "teams":
				return showList(ctx, c, cl, c.teamKind(), follow, want, cl.Teams)
			case "coldstarts":
				return showList(ctx, c, cl, c.coldStartKind(), follow, want, func(ctx context.Context) ([]api.ColdStart, error) { return cl.ColdStarts(ctx, manyColdStarts) })
			case "events":
				return showList(ctx, c, cl, c.eventKind(), follow, want, func(ctx context.Context) ([]functions.Event, error) { return cl.Events(ctx, 0) })
			}
			if follow {
				return kit.Usage("thaw keys list", "keys cannot be watched")
			}
			return showList(ctx, c, cl, c.keyKind(), false, want, func(ctx context.Context) ([]auth.Key, error) { return cl.Keys(ctx, "") })
		}),
	}
	watchFlag(cmd, &follow)
	// Without a kind a cluster lists its models as Kubernetes has them.
	c.toKnative(cmd, cluster{asks: true, flags: func(f *kit.FlagSet) {
		f.StringP("namespace", "n", "", "namespace, which is the team; of models, where no KIND is said")
		f.BoolP("all-namespaces", "A", false, "of all namespaces; likewise")
	}})
	return cmd
}

func watchFlag(cmd *cobra.Command, follow *bool) {
	cmd.Flags().BoolVarP(follow, "watch", "w", false, "go on, with a line for every change")
}

// showList lists or watches one kind; want, when given, is the name of one.
func showList[T any](ctx context.Context, c *command, cl *api.Client, k kit.Kind[T], follow bool, want string, get func(context.Context) ([]T, error)) error {
	is := func(v T) bool { return want == "" || k.Name(v) == want || shortName(k.Name(v)) == want }
	if follow {
		return watchList(ctx, c, cl, k, is)
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	items, err := get(ctx)
	if err != nil {
		return err
	}
	if want == "" {
		return kit.PrintList(c.Terminal, k, items)
	}
	var names []string
	for _, v := range items {
		if is(v) {
			return kit.PrintOne(c.Terminal, k, v)
		}
		names = append(names, k.Name(v))
	}
	hint := ""
	if near := functions.Nearest(want, names, 3); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, ", ") + "?"
	}
	return &kit.Error{Exit: kit.ExitNotFound, What: fmt.Sprintf("there is no %s %s", strings.ToLower(k.Word), functions.Clip(want)), Hint: hint}
}

func (c *command) ps() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "ps", Short: "What runs: replicas, and functions somebody waits for", GroupID: "use", Args: kit.ExactArgs(),
		Example: `  thaw ps
  thaw ps --watch
  thaw ps --to knative          of a cluster, by way of its API server
  thaw ps -o json`,
		RunE: c.remote(0, func(ctx context.Context, cl *api.Client, _ []string) error {
			if follow {
				return watchList(ctx, c, cl, c.replicaKind(), nil)
			}
			ctx, cancel := context.WithTimeout(ctx, askFor)
			defer cancel()
			replicas, err := cl.Replicas(ctx)
			if err != nil {
				return err
			}
			if err := kit.PrintList(c.Terminal, c.replicaKind(), replicas); err != nil || c.Output != "table" && c.Output != "wide" {
				return err
			}
			all, err := cl.Functions(ctx)
			if err != nil {
				return err
			}
			for _, f := range all {
				if f.Queued > 0 {
					why := f.State.Word()
					if f.Problem != "" {
						why = f.Problem
					}
					c.Remark("%d wait for %s: %s", f.Queued, shortName(f.Name), why)
				}
			}
			return nil
		}),
	}
	watchFlag(cmd, &follow)
	return c.asksKnative(cmd)
}

func (c *command) models() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "models", Short: "Which models there are, cold ones too", GroupID: "use", Args: kit.ExactArgs(),
		Example: `  thaw models
  thaw models --watch
  thaw models -o name`,
		RunE: c.remote(0, func(ctx context.Context, cl *api.Client, _ []string) error {
			return showList(ctx, c, cl, c.functionKind(), follow, "", cl.Functions)
		}),
	}
	watchFlag(cmd, &follow)
	return c.asksKnative(cmd)
}

// description is all there is to say of one function.
type description struct {
	Function  api.Function        `json:"function"`
	Replicas  []functions.Replica `json:"replicas"`
	ColdStart *api.ColdStart      `json:"coldStart,omitempty"`
	Events    []functions.Event   `json:"events"`
}

const describedEvents = 10

func (c *command) describe() *cobra.Command {
	v := &cobra.Command{
		Use: "describe NAME", Short: "Everything about one model, with its last cold start, or about one team", GroupID: "own", Args: kit.ExactArgs("the name of a model"),
		Example: `  thaw describe tiny
  thaw describe ml/llama -o json
  thaw describe team ml`,
		ValidArgsFunction: c.completeNames,
		RunE: c.remote(askFor, func(ctx context.Context, cl *api.Client, args []string) error {
			name, err := c.name(ctx, cl, args[0])
			if err != nil {
				return err
			}
			d := description{Replicas: []functions.Replica{}, Events: []functions.Event{}}
			if d.Function, err = cl.Function(ctx, name); err != nil {
				return err
			}
			replicas, err := cl.Replicas(ctx)
			if err != nil {
				return err
			}
			for _, r := range replicas {
				if r.Function == d.Function.Name {
					d.Replicas = append(d.Replicas, r)
				}
			}
			if id := d.Function.ColdStart; id != "" {
				if t, err := cl.ColdStart(ctx, id); err == nil {
					d.ColdStart = &t
				}
			}
			events, err := cl.Events(ctx, 0)
			if err != nil {
				return err
			}
			for _, e := range events {
				if e.Function == d.Function.Name {
					d.Events = append(d.Events, e)
				}
			}
			d.Events = d.Events[max(0, len(d.Events)-describedEvents):]
			switch c.Output {
			case "json", "yaml":
				m, err := kit.WithKind("Description", d)
				if err != nil {
					return err
				}
				return c.Encode(m)
			case "name":
				fmt.Fprintln(c.Out, kit.Plain(d.Function.Name))
				return nil
			}
			c.tell(d)
			return nil
		}),
	}
	c.asksKnative(v)
	v.AddCommand(c.asksKnative(c.describeTeam()))
	return v
}

// tell writes a description for people.
func (c *command) tell(d description) {
	f := d.Function
	row := func(key, format string, args ...any) {
		fmt.Fprintf(c.Out, "%-11s %s\n", key+":", kit.Plain(fmt.Sprintf(format, args...)))
	}
	row("Name", "%s", f.Name)
	row("State", "%s", stateWithPercent(f))
	if f.Problem != "" {
		row("Problem", "%s", f.Problem)
	}
	row("Requests", "%d active, %d queued", f.Active, f.Queued)
	row("Engine", "%s", f.Engine)
	row("Source", "%s", f.Source)
	row("From", "%s", f.Origin)
	if s := f.Spec; s != nil {
		row("Scale", "min %d, max %d, target %d, idle %s", s.Scale.Min, s.Scale.Max, s.Scale.Target, s.Scale.Idle)
		row("Resources", "%d GPUs, %s each; %s of memory", s.Resources.GPUs, s.Resources.GPUMemory.Human(), s.Resources.Memory.Human())
		row("Queue", "%d requests, %s, %s", s.Queue.Requests, s.Queue.Bytes.Human(), s.Queue.Wait)
		row("Deadlines", "stage %s, start %s, first token %s, hang %s, drain %s", s.Deadlines.Stage, s.Deadlines.Start, s.Deadlines.FirstToken, s.Deadlines.Hang, s.Deadlines.Drain)
		for _, a := range s.Adapters {
			state, note := "not loaded", ""
			for _, r := range d.Replicas {
				if slices.Contains(r.Adapters, a.Name) {
					state = "loaded"
				}
				if n := r.Notes[a.Name]; n != "" {
					note = "; " + n
				}
			}
			row("Adapter", "%s:%s from %s, %s%s", f.Model, a.Name, a.Source, state, note)
		}
	}
	if f.Expected != nil {
		row("Cold start", "%s expected", kit.Seconds(f.Expected))
	}
	if len(d.Replicas) > 0 {
		fmt.Fprintln(c.Out, "\nReplicas")
		kit.PrintTable(c.Out, c.replicaKind(), d.Replicas, c.Output == "wide", nil)
	}
	if d.ColdStart != nil {
		fmt.Fprintln(c.Out, "\nLast cold start")
		c.waterfall(*d.ColdStart)
	}
	if len(d.Events) > 0 {
		fmt.Fprintln(c.Out, "\nEvents")
		kit.PrintTable(c.Out, c.eventKind(), d.Events, c.Output == "wide", nil)
	}
}

// waterfall draws the phases of a cold start beneath each other.
func (c *command) waterfall(t api.ColdStart) {
	const wide = 40
	end := t.Total
	for _, p := range t.Phases {
		end = max(end, p.Start+p.Duration)
	}
	fmt.Fprintf(c.Out, "%s: %s, %s, %s\n", kit.Plain(t.ID), t.State.Word(), kit.Seconds(&t.Total), c.Since(t.Began)+" ago")
	if t.Start != "" {
		fmt.Fprintf(c.Out, "  the engine was started %s", kit.Plain(t.Start))
		if t.StartNote != "" {
			fmt.Fprintf(c.Out, ": %s", kit.Plain(t.StartNote))
		}
		fmt.Fprintln(c.Out)
	}
	line := func(name, mark string, start, duration float64, share string) {
		from, to := 0, 0
		if end > 0 {
			from = min(max(int(start/end*wide), 0), wide-1)
			to = min(max(int((start+duration)/end*wide+0.5), from+1), wide)
		}
		bar := strings.Repeat(" ", from) + strings.Repeat(mark, to-from)
		fmt.Fprintf(c.Out, "  %-12s |%-*s| %s%s\n", kit.Plain(name), wide, bar, kit.Seconds(&duration), share)
	}
	for _, p := range t.Phases {
		line(string(p.Phase), "=", p.Start, p.Duration, "")
		for _, q := range p.Parts { // as the engine's own log tells them
			line("  "+q.Name, "-", q.Start, q.Duration, fmt.Sprintf(", %.0f %%", 100*q.Duration/max(end, 1e-9)))
		}
	}
	if t.Error != "" {
		fmt.Fprintf(c.Out, "  failed: %s\n", kit.Plain(t.Error))
	}
}

func (c *command) wake() *cobra.Command {
	var lease time.Duration
	var wait bool
	cmd := &cobra.Command{
		Use: "wake NAME", Short: "Start a model before anybody asks for it", GroupID: "use", Args: kit.ExactArgs("the name of a model"),
		Example: `  thaw wake tiny --wait
  thaw wake ml/llama --lease 2h
  thaw wake ml/llama:pirate     # its adapter too`,
		ValidArgsFunction: c.completeNames,
		RunE: c.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
			name, err := c.name(ctx, cl, args[0])
			if err != nil {
				return err
			}
			w, err := cl.Wake(ctx, name, lease)
			if err != nil {
				return err
			}
			if wait {
				if err := c.follow(ctx, cl, name, w.ColdStart); err != nil {
					return err
				}
				w.State = functions.Ready
			}
			return c.woken(w)
		}),
	}
	cmd.Flags().DurationVar(&lease, "lease", 0, "keep it for so long though nobody asks; 0 is its own idle time")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is ready")
	return c.asksKnative(cmd)
}

func (c *command) woken(w api.Woken) error {
	switch c.Output {
	case "json", "yaml":
		m, err := kit.WithKind("Woken", w)
		if err != nil {
			return err
		}
		return c.Encode(m)
	case "name":
		fmt.Fprintln(c.Out, kit.Plain(w.Function))
	default:
		fmt.Fprintln(c.Out, kit.Plain(shortName(w.Function)+" "+w.State.Word()))
	}
	return nil
}

func (c *command) stop() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: "stop NAME", Short: "Drain a model's replicas; demand brings it back", GroupID: "use", Args: kit.ExactArgs("the name of a model"),
		Example: `  thaw stop tiny
  thaw stop tiny --wait`,
		ValidArgsFunction: c.completeNames,
		RunE: c.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
			name, err := c.name(ctx, cl, args[0])
			if err != nil {
				return err
			}
			w, err := cl.Stop(ctx, name)
			if err != nil {
				return err
			}
			for wait {
				all, err := cl.Replicas(ctx)
				if err != nil {
					return err
				}
				if !slices.ContainsFunc(all, func(r functions.Replica) bool { return r.Function == w.Function && !r.State.Over() }) {
					w.State = functions.Unloaded
					break
				}
				if err := sleepContext(ctx, progressEvery); err != nil {
					return err
				}
			}
			return c.woken(w)
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until no replica is left")
	return c.asksKnative(cmd)
}

func sleepContext(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (c *command) rm() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm NAME...", Short: "Forget deployed models", GroupID: "own", Args: kit.UpToArgs("the name of a model", 0),
		Example: `  thaw rm ml/llama
  thaw rm ml/llama --to knative`,
		Long: `Forget deployed models and drain their replicas. Models of the --functions folder
belong to you: remove their files there.`,
		ValidArgsFunction: c.completeNames,
		RunE: c.remote(askFor, func(ctx context.Context, cl *api.Client, args []string) error {
			for _, word := range args {
				name, err := c.name(ctx, cl, word)
				if err != nil {
					return err
				}
				if err := cl.Remove(ctx, name); err != nil {
					return err
				}
				if c.Output == "name" {
					fmt.Fprintln(c.Out, name)
				} else {
					fmt.Fprintln(c.Out, name, "removed")
				}
			}
			return nil
		}),
	}
	c.toKnative(cmd, cluster{flags: func(f *kit.FlagSet) { f.StringP("namespace", "n", "", "of names that say none") }})
	return cmd
}

func (c *command) logs() *cobra.Command {
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use: "logs NAME|REPLICA", Short: "What a model's engine says", GroupID: "own", Args: kit.ExactArgs("the name of a model or the id of a replica"),
		Example: `  thaw logs tiny
  thaw logs tiny --follow --tail 20`,
		ValidArgsFunction: c.completeNames,
		RunE: c.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
			id, err := c.replicaOf(ctx, cl, args[0])
			if err != nil {
				return err
			}
			r, err := cl.Logs(ctx, id, tail, follow)
			if err != nil {
				return err
			}
			defer r.Close()
			return c.copyLines(r)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on as more comes")
	cmd.Flags().IntVar(&tail, "tail", 200, "begin so many lines before the end")
	return c.asksKnative(cmd)
}

// replicaOf is the newest replica of a function, or the one of that id.
func (c *command) replicaOf(ctx context.Context, cl *api.Client, word string) (string, error) {
	all, err := cl.Replicas(ctx)
	if err != nil {
		return "", err
	}
	if i := slices.IndexFunc(all, func(r functions.Replica) bool { return r.ID == word }); i >= 0 {
		return word, nil
	}
	name, err := c.name(ctx, cl, word)
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
	if f.ColdStart != "" {
		if t, err := cl.ColdStart(ctx, f.ColdStart); err == nil && t.Replica != "" {
			return t.Replica, nil
		}
	}
	return "", &kit.Error{Exit: kit.ExitNotFound, What: name.String() + " has no replica, so it says nothing", Hint: "thaw wake " + shortName(name.String()) + " starts one"}
}

// copyLines passes text on; what would command the terminal is spelled out.
func (c *command) copyLines(r io.Reader) error {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			if c.OutTTY {
				line = kit.Readable(strings.TrimSuffix(line, "\n")) + "\n"
			}
			if _, err := io.WriteString(c.Out, line); err != nil {
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

func (c *command) keysVerb() *cobra.Command {
	cmd := &cobra.Command{Use: "keys", Short: "Make, list and end keys", GroupID: "own",
		Example: `  thaw keys create --team ml --name laptop
  thaw keys list
  thaw keys rm 0f3a9c`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return kit.UnknownVerb(cmd, args[0])
		}}
	var k api.KeyRequest
	create := &cobra.Command{
		Use: "create --team T", Short: "Make a key and print it, this once", Args: kit.ExactArgs(),
		Example: `  thaw keys create --team ml --name laptop
  thaw keys create --team ml --to knative
  export THAW_KEY=$(thaw keys create --team ml)`,
		RunE: c.remote(askFor, func(ctx context.Context, cl *api.Client, _ []string) error {
			if k.Team == "" {
				return kit.Usage("thaw keys create --team NAME", "--team is missing")
			}
			n, err := cl.CreateKey(ctx, k)
			if err != nil {
				return err
			}
			switch c.Output {
			case "json", "yaml":
				m, err := kit.WithKind("Key", n)
				if err != nil {
					return err
				}
				return c.Encode(m)
			}
			fmt.Fprintln(c.Out, kit.Plain(n.Secret))
			c.Remark("key %s of team %s; it is not shown again", n.ID, n.Team)
			return nil
		}),
	}
	create.Flags().StringVar(&k.Team, "team", "", "the team whose models it may use")
	create.Flags().StringVar(&k.Name, "name", "", "a word to know it by")
	create.Flags().BoolVar(&k.Admin, "admin", false, "it may also deploy, wake, stop and make keys")
	var team string
	ls := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "All keys, without their secrets", Args: kit.ExactArgs(),
		Example: `  thaw keys list --team ml`,
		RunE: c.remote(askFor, func(ctx context.Context, cl *api.Client, _ []string) error {
			keys, err := cl.Keys(ctx, team)
			if err != nil {
				return err
			}
			return kit.PrintList(c.Terminal, c.keyKind(), keys)
		}),
	}
	ls.Flags().StringVar(&team, "team", "", "only this team's")
	rm := &cobra.Command{
		Use: "rm ID...", Short: "End keys at once", Args: kit.UpToArgs("the id of a key", 0),
		Example: `  thaw keys rm 0f3a9c`,
		RunE: c.remote(askFor, func(ctx context.Context, cl *api.Client, args []string) error {
			for _, id := range args {
				if err := cl.DeleteKey(ctx, id); err != nil {
					return err
				}
				fmt.Fprintln(c.Out, kit.Plain(id), "ended")
			}
			return nil
		}),
	}
	// On a cluster a key is an entry of the Secret thaw-keys in the team's namespace.
	c.toKnative(create, cluster{passed: []string{"team", "name"}, never: []string{"admin"}})
	c.toKnative(ls, cluster{passed: []string{"team"}})
	c.toKnative(rm, cluster{flags: func(f *kit.FlagSet) {
		f.String("team", "", "whose keys they are; all are looked at where none is said")
	}})
	cmd.AddCommand(create, ls, rm)
	return cmd
}
