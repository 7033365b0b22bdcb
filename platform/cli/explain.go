package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/decision"
	"github.com/thaw-dev/thaw/platform/cli/describe"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

func (m modelVerbs) explainVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain ID | place|evict|cold|scale NAME | route ID",
		Short: "Where the time of a cold start went, and why a model is where it is", GroupID: "own",
		Args: kit.UpToArgs("the id of a cold start or a request, or what to explain of which model", 2),
		Long: `With an id: where the time of that cold start went, phase by phase. Of a request
to a composition: each call to a member, with its cold start.

With a word and the name of a model: what the model does now and why, and the
last decision of that kind about it, with what else could have been chosen.

  place   where it was placed and what every other node would have cost, or why
          it could be placed nowhere
  evict   who made way for it, and who else could have
  cold    why it lost its last replica and has to start again
  scale   why it wants more replicas than it has

With route and the id of a request to a Router: why its target answered it, with
the state of every candidate at that moment.

A score is what a choice costs, most of it seconds; the least was taken. Its
parts add up to it.`,
		Example: `  thaw explain cs-5f0c9a
  thaw explain 4bf92f3577b34da6a3ce929d0e0e4736     # of a request: the x-request-id of its answer (on a cluster its thaw-cold-start)
  thaw explain place llama
  thaw explain evict ml/llama -o json
  thaw explain route 4bf92f3577b34da6a3ce929d0e0e4736`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return append(api.ExplainKinds(), "route"), cobra.ShellCompDirectiveNoFileComp
			}
			return m.completeNames(cmd, args[1:], word)
		},
		RunE: m.remote(queryTimeout, func(ctx context.Context, cl *api.Client, args []string) error {
			switch {
			case args[0] == "route" && len(args) == 2:
				return m.printDecision(api.Request[functions.RouteRecord](ctx, cl, "GET", "/api/v1/routes/"+url.PathEscape(args[1]), nil))
			case args[0] == "route":
				return kit.Usage("thaw explain route ID", "the id of a request is missing: the x-request-id of its answer")
			case len(args) == 2:
				return m.explainDecision(ctx, cl, args[0], args[1])
			}
			if slices.Contains(api.ExplainKinds(), args[0]) {
				return kit.Usage("thaw explain "+args[0]+" NAME", "the name of a model is missing")
			}
			if strings.Contains(args[0], "/") { // no id has one
				return kit.Usage("thaw explain place "+args[0]+", or evict, cold, scale",
					"%q is the name of a model, not the id of a cold start or a request", functions.Clip(args[0]))
			}
			t, err := cl.ColdStart(ctx, args[0])
			if s, ok := errors.AsType[*api.StatusError](err); ok && s.Status == 404 {
				if name, none := m.name(ctx, cl, args[0]); none == nil {
					return &kit.Error{Exit: kit.ExitNotFound, Err: err,
						Hint: fmt.Sprintf("%s is a model: thaw explain place %s, or evict, cold, scale", tables.ShortName(name.String()),
							tables.ShortName(name.String()))}
				}
				path := "/api/v1/compositions/" + url.PathEscape(args[0])
				if rec, none := api.Request[functions.CompositionRecord](ctx, cl, "GET", path, nil); none == nil {
					return describe.PrintComposed(m.Terminal, tables.ShortName(rec.Composition), rec, startsOf(ctx, cl, &rec))
				}
				return &kit.Error{Exit: kit.ExitNotFound, Err: err,
					Hint: "a request that a Router sent to a ready model: thaw explain route " + functions.Clip(args[0])}
			}
			if err != nil {
				return err
			}
			k := tables.ColdStarts(m.Terminal)
			return m.PrintDocument(k.Word, k.Name(t), t, func() {
				fmt.Fprintln(m.Out, kit.Plain(t.Function))
				m.waterfall(t)
			})
		}),
	}
	return m.asksKnative(cmd)
}

// startsOf has the cold starts of the calls of a Composition that are remembered.
func startsOf(ctx context.Context, cl *api.Client, rec *functions.CompositionRecord) map[string]api.ColdStart {
	starts := map[string]api.ColdStart{}
	for _, x := range rec.Calls {
		if x.ColdStart == "" || starts[x.ColdStart].ID != "" {
			continue
		}
		if t, err := cl.ColdStart(ctx, x.ColdStart); err == nil {
			starts[x.ColdStart] = t
		}
	}
	return starts
}

func (m modelVerbs) explainDecision(ctx context.Context, cl *api.Client, kind, word string) error {
	if kinds := api.ExplainKinds(); !slices.Contains(kinds, kind) {
		return kit.Usage(kit.DidYouMean(kind, kinds, 1, "one of "+strings.Join(kinds, ", ")), "%q cannot be explained", functions.Clip(kind))
	}
	name, err := m.name(ctx, cl, word)
	if err != nil {
		return err
	}
	e, err := cl.Explain(ctx, kind, name)
	if err != nil {
		return err
	}
	return m.PrintDocument("Explanation", e.Function, e, func() {
		fmt.Fprintf(m.Out, "%s\n%s\n", kit.Plain(tables.ShortName(e.Function)), kit.Plain(e.Now))
		if e.Decided.IsZero() {
			fmt.Fprintf(m.Out, "\nNo decision of this kind about it is remembered.\n")
		} else {
			m.decision(e)
		}
		printSection(m.printer, "Events", tables.Events(m.Terminal), e.Events)
	})
}

// decisionTitles is what a decision of each kind was about.
var decisionTitles = map[string]string{"place": "Placed", "evict": "Made way for it", "cold": "Lost a replica", "scale": "Wants more"}

func (p printer) decision(e functions.Explanation) {
	fmt.Fprintf(p.Out, "\n%s %s ago", decisionTitles[e.Kind], p.Since(e.Decided))
	switch {
	case e.Chosen != "":
		fmt.Fprintf(p.Out, ": %s", kit.Plain(e.Chosen))
	case e.Kind == "place":
		fmt.Fprint(p.Out, ": no node was chosen")
	case e.Kind == "evict":
		fmt.Fprint(p.Out, ": nothing was evicted")
	}
	if e.Reason != "" {
		fmt.Fprintf(p.Out, ", because %s", kit.Plain(e.Reason))
	}
	if e.For != "" {
		fmt.Fprintf(p.Out, " (for %s)", kit.Plain(tables.ShortName(e.For)))
	}
	fmt.Fprintln(p.Out)
	if len(e.Candidates) == 0 {
		return
	}
	fmt.Fprintln(p.Out)
	kit.PrintTable(p.Out, candidateKind(e), e.Candidates, p.Output == "wide", nil)
	if e.Others > 0 {
		fmt.Fprintf(p.Out, "and %d more\n", e.Others)
	}
}

func candidateKind(e functions.Explanation) kit.Kind[functions.Candidate] {
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) }
	score := number
	if e.Kind == "place" { // close to each other: not rounded
		score = func(x float64) string { return number(x) + "s" }
	}
	k := kit.Kind[functions.Candidate]{Word: "Candidate", Name: func(v functions.Candidate) string { return v.Node }}
	add := func(head string, cell func(functions.Candidate) string) {
		for _, v := range e.Candidates {
			if cell(v) != "" { // empty columns are left out
				k.Columns = append(k.Columns, kit.Col(head, cell))
				return
			}
		}
	}
	add("", func(v functions.Candidate) string {
		if e.Chosen != "" && (v.Replica == e.Chosen || v.Replica == "" && v.Node == e.Chosen) {
			return "*"
		}
		return " "
	})
	add("NODE", func(v functions.Candidate) string { return v.Node })
	add("MODEL", func(v functions.Candidate) string { return tables.ShortName(v.Function) })
	add("REPLICA", func(v functions.Candidate) string { return v.Replica })
	scoreHeads := map[string]string{"place": "COST", "evict": "LOSS"}
	add(scoreHeads[e.Kind], func(v functions.Candidate) string {
		if v.Score == nil || scoreHeads[e.Kind] == "" {
			return ""
		}
		return score(*v.Score)
	})
	add("PARTS", func(v functions.Candidate) string {
		var parts []string
		for _, p := range v.Parts {
			name, isTime := strings.CutSuffix(p.Name, "_seconds")
			switch {
			case p.Value == 0 || e.Kind == "evict" && name == "loss": // it is the score
			case name == "gib":
				parts = append(parts, number(p.Value)+" GiB")
			case isTime:
				parts = append(parts, name+" "+kit.Span(time.Duration(p.Value*float64(time.Second))))
			default:
				parts = append(parts, name+" "+score(p.Value))
			}
		}
		return strings.Join(parts, ", ")
	})
	add("TIER", func(v functions.Candidate) string { return string(v.Tier) })
	add("WHY NOT", func(v functions.Candidate) string { return v.Why })
	return k
}

func (m modelVerbs) events() *cobra.Command {
	var follow bool
	var what string
	cmd := &cobra.Command{
		Use: "events [NAME]", Short: "What happened, of one model or of all, and why", GroupID: "own", Args: kit.UpToArgs("", 1),
		Long: `What happened, oldest first: starts, stops, evictions, cold starts, nodes that
came and went, each with its reason. The last thousand are kept.`,
		Example: `  thaw events
  thaw events llama --follow
  thaw events --kind stop -o json`,
		ValidArgsFunction: m.completeNames,
		RunE: m.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
			of := ""
			if len(args) == 1 {
				name, err := m.name(ctx, cl, args[0])
				if err != nil {
					return err
				}
				of = name.WithoutAdapter().String()
			}
			k := tables.Events(m.Terminal)
			k.Query = "?" + url.Values{"function": {of}, "kind": {what}}.Encode()
			k.Keep = func(e functions.Event) bool { return (of == "" || e.Function == of) && (what == "" || e.Kind == what) }
			if err := showList(ctx, m, cl, k, follow, ""); err != nil || follow || what == "" {
				return err
			}
			m.nameEventKinds(ctx, cl, what)
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on, with a line for every event")
	cmd.Flags().StringVar(&what, "kind", "", "only events of this kind: start, ready, stop, failed, blocked, node_lost, …")
	return m.asksKnative(cmd)
}

// nameEventKinds says what the events are called that are remembered, unless one of them is
// called so. It asks once more, and is silent where that fails: the list has been printed.
func (m modelVerbs) nameEventKinds(ctx context.Context, cl *api.Client, what string) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	all, err := cl.Events(ctx, "", "")
	if err != nil {
		return
	}
	var kinds []string
	for _, e := range all {
		if !slices.Contains(kinds, e.Kind) {
			kinds = append(kinds, e.Kind)
		}
	}
	slices.Sort(kinds)
	if len(kinds) > 0 && !slices.Contains(kinds, what) {
		m.Remark("no event is called %q; those that are remembered are called %s", functions.Clip(what), strings.Join(kinds, ", "))
		if near := functions.Nearest(what, kinds, 3); len(near) > 0 {
			m.Remark("did you mean %s?", strings.Join(near, ", "))
		}
	}
}

func (m modelVerbs) route() *cobra.Command {
	var file, router, path string
	cmd := &cobra.Command{
		Use: "route [-f request.json | TEXT]", Short: "What a Router would send a request to, without sending it", GroupID: "own",
		Args: kit.UpToArgs("", 1),
		Long: `Decide about a request as the server would now, and print the decision: the rule
that matched, the state of its targets, and what was seen in the request. No model
is asked and nothing is counted or recorded.

TEXT is the only message of a chat. A file is the body of any request, as it would
be sent; its model names the Router unless --router does. - is standard input.`,
		Example: `  thaw route "Fix this: panic: runtime error: index out of range"
  thaw route -f request.json --router ml/auto
  thaw route "where is my invoice" -o json`,
		RunE: m.remote(queryTimeout, func(ctx context.Context, cl *api.Client, args []string) error {
			body, err := decision.ReadBody(m.In, file, args)
			if err != nil {
				return err
			}
			return m.printDecision(cl.Route(ctx, router, path, body))
		}),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "the body of the request; - is standard input")
	cmd.Flags().StringVar(&router, "router", "", "the Router, NAME or TEAM/NAME (default: the model of the file, else auto)")
	cmd.Flags().StringVar(&path, "path", "/v1/chat/completions", "the path that the request would be sent to")
	return cmd
}

func (m modelVerbs) printDecision(rec functions.RouteRecord, err error) error {
	if err != nil {
		return err
	}
	return decision.Print(m.Terminal, tables.ShortName(rec.Router), rec)
}
