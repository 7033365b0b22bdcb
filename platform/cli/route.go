package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// maxRouteBody bounds the file of thaw route.
const maxRouteBody = 32 << 20

func (c modelVerbs) route() *cobra.Command {
	var file, router, path string
	cmd := &cobra.Command{
		Use: "route [-f request.json | TEXT]", Short: "What a Router would send a request to, without sending it", GroupID: "own", Args: kit.UpToArgs("the text of a user's message, in quotation marks", 1),
		Long: `Decide about a request as the server would now, and print the decision: the rule
that matched, the state of its targets, and what was seen in the request. No model
is asked and nothing is counted or recorded.

TEXT is the only message of a chat. A file is the body of any request, as it would
be sent; its model names the Router unless --router does. - is standard input.`,
		Example: `  thaw route "Fix this: panic: runtime error: index out of range"
  thaw route -f request.json --router ml/auto
  thaw route "where is my invoice" -o json`,
		RunE: c.remote(queryTimeout, func(ctx context.Context, cl *api.Client, args []string) error {
			body, err := c.routeBody(file, args)
			if err != nil {
				return err
			}
			rec, err := cl.Route(ctx, router, path, body)
			if err != nil {
				return err
			}
			return c.printDecision(rec)
		}),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "the body of the request; - is standard input")
	cmd.Flags().StringVar(&router, "router", "", "the Router, NAME or TEAM/NAME (default: the model of the file, else auto)")
	cmd.Flags().StringVar(&path, "path", "/v1/chat/completions", "the path that the request would be sent to")
	return cmd
}

// routeBody is the request of thaw route: a file, or a chat of one message.
func (c modelVerbs) routeBody(file string, args []string) ([]byte, error) {
	switch {
	case (file == "") == (len(args) == 0):
		return nil, kit.Usage(`thaw route "TEXT", or thaw route -f request.json`, "either a text or a file is needed")
	case file == "-":
		return readBounded(c.In)
	case file != "":
		f, err := os.Open(file)
		if err != nil {
			return nil, &kit.Error{Exit: kit.ExitUsage, What: "the request cannot be read", Err: err}
		}
		defer f.Close()
		return readBounded(f)
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	return json.Marshal(map[string]any{"messages": []message{{"user", args[0]}}})
}

func readBounded(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxRouteBody+1))
	if err == nil && len(b) > maxRouteBody {
		return nil, kit.Usage("a request is at most 32 MiB", "the request is too large")
	}
	return b, err
}

// explainRoute explains the decision about a request that was answered.
func (c *connection) explainRoute(ctx context.Context, cl *api.Client, id string) error {
	rec, err := cl.Decision(ctx, id)
	if err != nil {
		return err
	}
	return c.printDecision(rec)
}

func (c printer) printDecision(rec functions.RouteRecord) error {
	return c.PrintDocument("Route", rec.ID, rec, func() {
		target := rec.Target
		if target == "" {
			target = "no target"
		}
		fmt.Fprintf(c.Out, "%s: %s\n%s\n\n", kit.Plain(shortName(rec.Router)), kit.Plain(target), kit.Plain(rec.Reason))
		row := func(name, value string) {
			if value != "" {
				fmt.Fprintf(c.Out, "%-10s %s\n", name, kit.Plain(value))
			}
		}
		row("request", rec.ID)
		row("time", rec.Time)
		row("rule", rec.Rule)
		row("stage", string(rec.Stage))
		row("data", string(rec.Data))
		row("cold", string(rec.Cold))
		row("objective", objectiveText(rec.Objective))
		row("prewarmed", rec.Prewarm)
		row("after", rec.After)
		row("cache", rec.Cache)
		row("seen", featuresText(rec.Features))
		if rec.Code != 0 {
			row("answer", strconv.Itoa(rec.Code))
		}
		if rec.Outcome != nil {
			row("outcome", strconv.FormatFloat(*rec.Outcome, 'g', 4, 64))
		}
		if len(rec.Candidates) > 0 {
			fmt.Fprintln(c.Out)
			kit.PrintTable(c.Out, routeCandidateKind(rec), rec.Candidates, c.Output == "wide", nil)
		}
	})
}

func objectiveText(o functions.Objective) string {
	var parts []string
	if o.FirstToken > 0 {
		parts = append(parts, "first token within "+o.FirstToken.String())
	}
	if o.CostPerRequest > 0 {
		parts = append(parts, "cost at most "+strconv.FormatFloat(o.CostPerRequest, 'g', 6, 64))
	}
	return strings.Join(parts, ", ")
}

// featuresText lists what was seen in a request. What no rule asked for is left out.
func featuresText(f functions.RouteFeatures) string {
	parts := []string{"about " + strconv.Itoa(f.TokenCount) + " tokens"}
	for _, b := range []struct {
		name string
		is   bool
	}{
		{"code", f.Code}, {"structured output", f.StructuredOutput}, {"safety", f.Safety}, {"tools", f.Tools},
		{"images", f.Images}, {"repeated prefix", f.RepeatedPrefix},
	} {
		if b.is {
			parts = append(parts, b.name)
		}
	}
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }
	if f.Language != "" {
		parts = append(parts, "language "+f.Language)
	}
	if f.Complexity >= 0 {
		parts = append(parts, "complexity "+number(f.Complexity))
	}
	switch {
	case f.Intent != "":
		parts = append(parts, "intent "+f.Intent+" ("+number(f.Confidence)+")")
	case f.Confidence > 0:
		parts = append(parts, "no intent (the likeliest has "+number(f.Confidence)+")")
	}
	return strings.Join(parts, ", ")
}

func routeCandidateKind(rec functions.RouteRecord) kit.Kind[functions.RouteCandidate] {
	return kit.Kind[functions.RouteCandidate]{Word: "Candidate", Name: func(v functions.RouteCandidate) string { return v.Name }, Columns: []kit.Column[functions.RouteCandidate]{
		kit.Col("", func(v functions.RouteCandidate) string {
			if v.Name == rec.Target {
				return "*"
			}
			return " "
		}),
		kit.Col("TARGET", func(v functions.RouteCandidate) string { return v.Name }),
		kit.Col("KIND", func(v functions.RouteCandidate) string { return v.Kind }),
		kit.Col("STATE", func(v functions.RouteCandidate) string { return v.State }),
		kit.Col("FIRST TOKEN", func(v functions.RouteCandidate) string {
			if v.ExpectedMS < 0 {
				return "unknown"
			}
			return strconv.FormatFloat(v.ExpectedMS, 'f', 1, 64) + " ms"
		}),
		kit.Col("COST", func(v functions.RouteCandidate) string {
			if v.Cost < 0 {
				return "unknown"
			}
			return strconv.FormatFloat(v.Cost, 'g', 4, 64)
		}),
		kit.Col("WHY NOT", func(v functions.RouteCandidate) string { return v.WhyNot }),
	}}
}
